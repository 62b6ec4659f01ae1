// The commands that print texts about the command line: help, version, completions and man.
#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/examples/terrace/cli/completions.h>
#include <terrace/examples/terrace/cli/man_page.h>
#include <terrace/examples/terrace/cli/reference_pages.h>
#include <terrace/examples/terrace/cli/version_text.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/config/presets.h>

namespace terrace::cli {

namespace {

constexpr std::string_view kPresets = "presets";

std::string reference_page(const std::string& name) {
  std::vector<std::string_view> names;
  for (const auto& page : reference_pages()) {
    if (page.name == name) return page.write(describe_program());
    names.push_back(page.name);
  }
  refuse(fmt::format("man: there is no page \"{}\"{}; the pages are {}", name, suggestion(name, names), fmt::join(names, ", ")),
         "man");
}

void demand_one_word(const CommandLine& line) {
  if (line.positional.size() > 1) refuse(fmt::format("unexpected argument \"{}\"", line.positional[1]), line.command);
}

std::string answer_help(const CommandLine& line) {
  return line.positional.size() == 1 && line.positional.front() == kPresets ? preset_list() : std::string();
}

std::string answer_man(const CommandLine& line) {
  demand_one_word(line);
  return line.positional.empty() ? man_page(describe_program(), version_line()) : reference_page(line.positional.front());
}

std::string answer_completions(const CommandLine& line) {
  demand_one_word(line);
  static constexpr std::array<std::string_view, 3> kShells{"bash", "zsh", "fish"};
  if (line.positional.empty()) refuse("completions needs the name of a shell: bash, zsh or fish", line.command);
  const auto& shell = line.positional.front();
  if (shell == "bash") return bash_completions(describe_program());
  if (shell == "zsh") return zsh_completions(describe_program());
  if (shell == "fish") return fish_completions(describe_program());
  refuse(fmt::format("completions: there is no script for the shell \"{}\"{}", shell, suggestion(shell, kShells)),
         line.command);
}

}  // namespace

std::vector<const char*> without_help_command(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  if (argc < 2 || std::string_view(argv[1]) != "help") return words;
  if (argc > 2 && (argv[2][0] == '-' || argv[2] == kPresets)) return words;  // arguments of help itself
  words.erase(words.begin() + 1);
  // Inserts before a `--`, because behind it launch has the words of another command.
  words.insert(std::ranges::find_if(words, [](std::string_view word) { return word == "--"; }), "--help");
  return words;
}

Command help_command() {
  return {.name = "help",
          .help = "print the help of a command, or the list of presets",
          .positional = "COMMAND|presets",
          .examples = {"terrace help train", "terrace help bench nvme"},
          .answer = answer_help};
}

Command version_command() {
  return {.name = "version", .help = "print the version and what it was built with", .answer = [](const CommandLine&) {
            return version_text() + "\n";
          }};
}

Command completions_command() {
  return {.name = "completions",
          .help = "print a script for a shell to complete commands and flags",
          .positional = "bash|zsh|fish",
          .examples = {"source <(terrace completions bash)", "terrace completions zsh > ~/.zfunc/_terrace",
                       "terrace completions fish > ~/.config/fish/completions/terrace.fish"},
          .answer = answer_completions};
}

Command man_command() {
  return {.name = "man",
          .help = "print the manual page, or a page of the reference in Markdown",
          .positional = "[flags|metrics|exit-codes]",
          .examples = {"terrace man > terrace.1", "terrace man | man -l -", "terrace man flags"},
          .answer = answer_man};
}

}  // namespace terrace::cli
