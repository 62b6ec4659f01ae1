// A command line as plain data, from which the help, the completions of shells and the manual page are made.
//
// Owner:   values. Threads: any. Errors: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace terrace::cli {

struct FlagText {
  std::string name = {};   // "--steps"; for a positional word its name in the usage, "RUN"
  std::string value = {};  // "INT", "fp32|bf16", "FILE..."; empty: a flag without a value
  std::string help = {};
  std::string fallback = {};    // the default value; empty: none
  std::string brief = {};       // what -h says; empty: as much of `help` as fits
  std::string group = {};       // heading of --help: the section of a setting, "cluster", or empty
  bool common = false;          // -h shows it
  bool setting = false;         // a row of the option table
  bool of_config_json = false;  // as Option::of_config_json
  bool word = false;            // positional: given without a flag
  bool many = false;            // takes several values

  [[nodiscard]] std::vector<std::string> choices() const;  // "fp32", "bf16"
  [[nodiscard]] bool takes_path() const;
};

struct CommandText {
  std::string name = {};  // "train", "bench nvme"; empty: the program itself
  std::string help = {};
  std::vector<FlagText> flags = {};        // without -h and --help, which every command has
  std::vector<CommandText> commands = {};  // below this one
  std::vector<std::string> examples = {};
  std::string notes = {};

  [[nodiscard]] std::string called() const { return name.empty() ? "terrace" : "terrace " + name; }
};

// Settings under one heading: a section of a TOML file. The facts of a model, which are also in a section, have a heading of
// their own.
struct SettingsSection {
  std::string name = {};
  bool of_config_json = false;
  std::vector<FlagText> settings = {};

  [[nodiscard]] std::string title() const;  // "[train]"
};

CommandText describe_command(const CLI::App& app, const std::string& name);
// Every setting once, as described by the command that accepts them all; the facts of models come last.
std::vector<SettingsSection> settings_of(const CommandText& program);
// Adds the command's examples (commands.h), and decides which of its flags are common.
void finish(CommandText& command);

}  // namespace terrace::cli
