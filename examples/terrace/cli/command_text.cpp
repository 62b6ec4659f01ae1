#include <terrace/examples/terrace/cli/command_text.h>

#include <algorithm>
#include <array>
#include <cctype>

#include <CLI/CLI.hpp>

#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/options.h>

namespace terrace::cli {
namespace {

// The words of "auto|none|layer|N" or "ACTION RUN [NEW]".
std::vector<std::string> pieces_of(std::string_view value, std::string_view borders) {
  std::vector<std::string> parts(1);
  for (const char c : value) {
    if (borders.find(c) == std::string_view::npos)
      parts.back() += c;
    else
      parts.emplace_back();
  }
  std::erase(parts, "");
  return parts;
}

bool is_upper(char c) { return std::isupper(static_cast<unsigned char>(c)) != 0; }

// CLI11 appends what it checks: "TEXT:{auto,u16}", "INT:INT in [0 - 4096]".
std::string value_name(const CLI::Option& option) {
  auto type = option.get_type_name();
  if (const auto set = type.find(":{"); set != std::string::npos) {
    type = type.substr(set + 2, type.find('}', set) - set - 2);
    std::ranges::replace(type, ',', '|');
  }
  if (type.find(" in [") != std::string::npos) type.resize(type.find(':'));
  if (type == "FLOAT") type = "NUMBER";
  if (type == "UINT") type = "INT";
  return type;
}

FlagText describe_flag(const CLI::Option& option) {
  FlagText flag{.help = option.get_description(), .fallback = option.get_default_str(), .group = option.get_group()};
  const bool many = option.get_expected_max() >= CLI::detail::expected_max_vector_size;
  if (option.get_positional()) {
    flag.word = true;
    flag.name = value_name(option);
    if (flag.name.empty() || flag.name == "TEXT") {
      flag.name = option.get_name(true, false);
      std::ranges::transform(flag.name, flag.name.begin(), [](unsigned char c) { return std::toupper(c); });
    }
    flag.fallback.clear();
  } else {
    flag.name = option.get_lnames().empty() ? "-" + option.get_snames().front() : "--" + option.get_lnames().front();
    if (option.get_items_expected_max() > 0) flag.value = value_name(option) + (many ? "..." : "");
    flag.many = many;
  }
  if (flag.help.find("(default ") != std::string::npos || flag.value.empty()) flag.fallback.clear();
  const auto* const row = flag.word ? nullptr : find_option(std::string_view(flag.name).substr(2));
  if (row && row->section == flag.group) {
    flag.setting = true;
    flag.common = !row->brief.empty();
    flag.brief = row->brief;
    flag.of_config_json = row->of_config_json;
  }
  if (flag.group == "Options") flag.group.clear();  // what CLI11 calls the flags that no group has
  return flag;
}

}  // namespace

// A part in capitals is a name of values, such as N, DIR or cuda:N.
std::vector<std::string> FlagText::choices() const {
  const std::string_view text = word ? name : value;
  auto parts = pieces_of(text.substr(0, text.find(' ')), "|[]");
  if (parts.size() < 2) return {};
  std::erase_if(parts, [](const std::string& part) { return std::ranges::any_of(part, is_upper); });
  return parts;
}

bool FlagText::takes_path() const {
  static constexpr std::array<std::string_view, 7> kPaths{"FILE", "PATH", "DIR", "RUN", "NEW", "STORE", "PROGRAM"};
  return std::ranges::any_of(pieces_of(word ? name : value, "|. []"),
                             [](const std::string& part) { return std::ranges::find(kPaths, part) != kPaths.end(); });
}

CommandText describe_command(const CLI::App& app, const std::string& name) {
  CommandText command{.name = name, .help = app.get_description(), .notes = app.get_footer()};
  for (const auto* const option : app.get_options())
    if (option != app.get_help_ptr() && option != app.get_help_all_ptr()) command.flags.push_back(describe_flag(*option));
  for (const auto* const sub : app.get_subcommands([](const CLI::App*) { return true; }))
    command.commands.push_back(describe_command(*sub, name + (name.empty() ? "" : " ") + sub->get_name()));
  finish(command);
  return command;
}

std::string SettingsSection::title() const {
  return of_config_json ? "[" + name + "], facts of a model, which --model DIR reads in its config.json" : "[" + name + "]";
}

std::vector<SettingsSection> settings_of(const CommandText& program) {
  const auto count = [](const CommandText& command) { return std::ranges::count_if(command.flags, &FlagText::setting); };
  std::vector<SettingsSection> sections;
  for (const auto& flag : std::ranges::max_element(program.commands, {}, count)->flags) {
    if (!flag.setting) continue;
    const auto here = [&flag](const SettingsSection& section) {
      return section.name == flag.group && section.of_config_json == flag.of_config_json;
    };
    auto at = std::ranges::find_if(sections, here);
    if (at == sections.end()) at = sections.insert(at, {.name = flag.group, .of_config_json = flag.of_config_json});
    at->settings.push_back(flag);
  }
  std::stable_partition(sections.begin(), sections.end(),
                        [](const SettingsSection& section) { return !section.of_config_json; });
  return sections;
}

void finish(CommandText& command) {
  static const Command program{.name = "",
                               .help = "",
                               .examples = {"terrace train --data book.txt --steps 1000",
                                            "terrace generate runs/terrace --prompt 'Once upon a time'", "terrace help train"}};
  static const Command part;  // such as "bench nvme"
  const auto* const known = command.name.empty() ? &program : find_command(command.name);
  const auto& more = known ? *known : part;
  command.examples.assign(more.examples.begin(), more.examples.end());
  // Flags other than settings are what a command is for, so they are common, unless the command names the few to show.
  for (auto& flag : command.flags) {
    if (flag.setting) continue;
    const auto named = std::ranges::find(more.shown, flag.name, &ShownFlag::name);
    flag.common = more.shown.empty() || named != more.shown.end();
    if (named != more.shown.end()) flag.brief = named->brief;
  }
  // If only some of the other flags are common, the settings come first. Positional words come before all flags.
  const bool settings_first = !more.shown.empty();
  auto& flags = command.flags;
  std::stable_partition(flags.begin(), flags.end(), [&](const FlagText& flag) { return flag.setting == settings_first; });
  std::stable_partition(flags.begin(), flags.end(), [](const FlagText& flag) { return flag.word; });
}

}  // namespace terrace::cli
