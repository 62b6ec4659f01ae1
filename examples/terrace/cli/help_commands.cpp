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

std::string answer_of(const CommandLine& line) {
  const auto& words = line.positional;
  if (line.command == "version") return version_text() + "\n";
  if (line.command == "help" && words.size() == 1 && words[0] == kPresets) return preset_list();
  if (line.command != "man" && line.command != "completions") return {};
  if (words.size() > 1) refuse(fmt::format("unexpected argument \"{}\"", words[1]), line.command);
  if (line.command == "man") return words.empty() ? man_page(describe_program(), version_line()) : reference_page(words[0]);
  static constexpr std::array<std::string_view, 3> kShells{"bash", "zsh", "fish"};
  if (words.empty()) refuse("completions needs the name of a shell: bash, zsh or fish", line.command);
  if (words[0] == "bash") return bash_completions(describe_program());
  if (words[0] == "zsh") return zsh_completions(describe_program());
  if (words[0] == "fish") return fish_completions(describe_program());
  refuse(fmt::format("completions: there is no script for the shell \"{}\"{}", words[0], suggestion(words[0], kShells)),
         line.command);
}

}  // namespace terrace::cli
