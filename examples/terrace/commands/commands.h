// The commands of `terrace`. A command is one value: its words and flags, their checks, what it does, and the examples of its
// help. Adding one takes its own file and a line in command_list.cpp.
//
// Owner:   constant data. Threads: one. Errors: see core/base/error.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/cli/command_text.h>
#include <terrace/examples/terrace/config/exit_codes.h>

namespace terrace::cli {

// A flag, other than a setting, that -h shows.
struct ShownFlag {
  std::string_view name, brief;
};

struct Command {
  std::string_view name, help;
  std::vector<std::string_view> takes = {};     // settings, by section or key; "all": every one
  std::string_view positional = {};             // "RUN", "STORE"; empty: none
  std::vector<std::string_view> examples = {};  // at most three, so that -h fits a screen
  std::vector<ShownFlag> shown = {};            // empty: all
  bool reads_weights = false;                   // of runs or models, and trains nothing
  bool finds_device = false;                    // it works on the device of --device
  void (*add_options)(CLI::App& sub, CommandLine& out) = nullptr;
  void (*check)(const CommandLine& line) = nullptr;
  // One of these three. `answer` returns a text to print.
  Exit (*run)(const CommandLine& line) = nullptr;
  std::string (*answer)(const CommandLine& line) = nullptr;
  // A command with a command line of its own, from the word of the command on.
  Exit (*run_words)(int argc, const char* const* argv) = nullptr;
  CommandText (*describe)() = nullptr;  // of that command line

  [[nodiscard]] bool takes_all() const { return !takes.empty() && takes.front() == "all"; }
};

const std::vector<Command>& commands();  // in the order of the help
const Command* find_command(std::string_view name);

// Rewrites the words `terrace help train` to `terrace train --help`. Other command lines stay as they are.
std::vector<const char*> without_help_command(int argc, const char* const* argv);

}  // namespace terrace::cli
