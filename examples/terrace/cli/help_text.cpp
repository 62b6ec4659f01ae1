#include <terrace/examples/terrace/cli/help_text.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <terrace/examples/terrace/base/text_columns.h>

namespace terrace::cli {
namespace {

constexpr std::size_t kUsualColumns = 80, kLeastColumns = 60, kMostColumns = 100;
constexpr std::size_t kScreenRows = 23;   // of 24: the last one is for the shell's prompt
constexpr std::size_t kHeadColumns = 30;  // for flags with their values; the help of a flag begins behind them

// "--dtype fp32|bf16|fp16|fp64"
std::string head_of(const FlagText& flag) { return flag.value.empty() ? flag.name : flag.name + " " + flag.value; }

// The same in at most `columns`. If the choices need more, NAME replaces them.
std::string short_head_of(const FlagText& flag, std::size_t columns) {
  const auto head = head_of(flag);
  return columns_of(head) <= columns || flag.value.find('|') == std::string::npos ? head : flag.name + " NAME";
}

std::string with_default(const std::string& text, const FlagText& flag) {
  return flag.fallback.empty() ? text : fmt::format("{} (default {})", text, flag.fallback);
}

// A flag with its help beside it. A long flag has its own line, or several lines, which are broken between choices.
std::string full_entry(const std::string& head, const std::string& help, std::size_t columns) {
  std::string out = "  ", rest = head;
  for (std::size_t indent = 2; columns_of(rest) + indent > columns; indent = 6) {
    const auto border = rest.rfind('|', columns - indent - 1);
    if (border == std::string::npos || border == 0) break;
    out += rest.substr(0, border) + "\n" + std::string(6, ' ');
    rest.erase(0, border);
  }
  out += rest;
  const bool beside = columns_of(head) + 4 <= kHeadColumns;
  if (beside) out += std::string(kHeadColumns - 2 - columns_of(head), ' ');
  bool first = beside;
  for (const auto& line : wrapped(help, columns - kHeadColumns)) {
    out += (first ? "" : "\n" + std::string(kHeadColumns, ' ')) + line;
    first = false;
  }
  return out + "\n";
}

std::string brief_entry(const std::string& head, const std::string& help, std::size_t head_columns) {
  return fmt::format("  {}{}  {}\n", head, std::string(head_columns - std::min(head_columns, columns_of(head)), ' '), help);
}

// One line for each entry; the heads have the same width.
std::string brief_list(const std::vector<const FlagText*>& flags) {
  constexpr std::size_t kMostHead = 28;
  std::vector<std::string> heads;
  std::size_t widest = 0;
  for (const auto* const flag : flags) {
    heads.push_back(short_head_of(*flag, kMostHead));
    widest = std::max(widest, std::min(columns_of(heads.back()), kMostHead));
  }
  std::string out;
  for (std::size_t i = 0; i < flags.size(); ++i) {
    const auto room = kUsualColumns - 4 - std::max(widest, columns_of(heads[i]));
    const auto text = flags[i]->brief.empty() ? first_clauses(flags[i]->help, room) : flags[i]->brief;
    const auto whole = with_default(text, *flags[i]);
    out += brief_entry(heads[i], columns_of(whole) <= room ? whole : text, widest);
  }
  return out;
}

using Group = std::pair<std::string, std::vector<const FlagText*>>;

// The common flags first, then the others by group, and last those that a model's config.json states.
std::vector<Group> groups_of(const CommandText& command) {
  Group common{"Common flags", {}}, facts{"Facts of a model, which --model DIR reads in its config.json", {}};
  std::vector<Group> others;
  for (const auto& flag : command.flags) {
    if (flag.common || flag.of_config_json) {
      (flag.common ? common : facts).second.push_back(&flag);
      continue;
    }
    auto title = flag.setting         ? fmt::format("More flags, [{}]", flag.group)
                 : flag.group.empty() ? "More flags of " + command.called()
                                      : "More flags, " + flag.group;
    auto at = std::ranges::find(others, title, &Group::first);
    if (at == others.end()) at = others.emplace(at, std::move(title), std::vector<const FlagText*>{});
    at->second.push_back(&flag);
  }
  if (others.empty()) common.first = "Flags";
  others.insert(others.begin(), std::move(common));
  others.push_back(std::move(facts));
  std::erase_if(others, [](const Group& group) { return group.second.empty(); });
  return others;
}

}  // namespace

std::string first_clauses(std::string_view text, std::size_t columns) {
  text = text.substr(0, text.find(';'));
  if (columns_of(text) <= columns) return std::string(text);
  for (const auto* const border : {": ", ", ", " ("})
    if (const auto at = text.substr(0, columns + 2).rfind(border); at != std::string_view::npos) {
      text = text.substr(0, at);
      const auto open = text.rfind(" (");
      return std::string(
          open == std::string_view::npos || text.find(')', open) != std::string_view::npos ? text : text.substr(0, open));
    }
  return cut(text, columns);
}

FlagText help_flag() { return {.name = "-h, --help", .help = "print the common flags (-h) or all flags (--help), and exit"}; }

std::string usage_of(const CommandText& command) {
  auto usage = command.called();
  if (!command.commands.empty()) return usage + (command.name.empty() ? " COMMAND" : " NAME") + " [FLAGS]";
  std::string last;  // what stands behind a --, which ends the flags
  bool flags = false;
  for (const auto& flag : command.flags) {
    if (flag.word) (flag.name.starts_with("--") ? last : usage) += " " + flag.name;
    flags = flags || !flag.word;
  }
  return usage + (flags ? " [FLAGS]" : "") + last;
}

std::string brief_help(const CommandText& command) {
  const auto usage = "Usage: " + usage_of(command) + "\n";
  std::string examples;
  for (const auto& line : command.examples) examples += "  $ " + line + "\n";
  const auto more = fmt::format("All flags: {} --help\n", command.called());
  auto room = kScreenRows - 2 - command.examples.size();

  if (!command.commands.empty()) {
    std::vector<FlagText> names;
    for (const auto& sub : command.commands)
      names.push_back({.name = sub.name.substr(command.name.empty() ? 0 : command.name.size() + 1), .help = sub.help});
    std::vector<const FlagText*> rows;
    for (const auto& name : names) rows.push_back(&name);
    const auto last = command.name.empty() ? "Flags of a command: terrace COMMAND -h\n"
                                           : fmt::format("Flags of one of them: {} NAME -h\n", command.called());
    return usage + brief_list(rows) + examples + last;
  }
  std::vector<const FlagText*> rows;
  for (const auto& flag : command.flags)
    if (flag.common && rows.size() < room) rows.push_back(&flag);
  // If all flags fit, all are shown.
  if (command.flags.size() <= room) {
    rows.clear();
    for (const auto& flag : command.flags) rows.push_back(&flag);
  }
  std::erase_if(rows, [](const FlagText* flag) { return flag->word && flag->choices().size() > 1; });  // the usage shows them
  room -= rows.size();
  const auto about = room == 0 ? "" : "  " + first_clauses(command.help, kUsualColumns - 2) + "\n";
  return usage + about + brief_list(rows) + examples + more;
}

std::string full_help(const CommandText& command, std::size_t columns) {
  std::string out = "Usage: " + usage_of(command) + "\n";
  for (const auto& line : wrapped(command.help, columns - 2)) out += "  " + line + "\n";
  if (!command.commands.empty()) out += command.name.empty() ? "\nCommands:\n" : "\nNames:\n";
  for (const auto& sub : command.commands)
    out += full_entry(sub.name.substr(command.name.empty() ? 0 : command.name.size() + 1), sub.help, columns);
  auto groups = groups_of(command);
  const auto help = help_flag();
  if (groups.empty()) groups.push_back({"Flags", {}});
  groups.front().second.push_back(&help);
  for (const auto& [title, flags] : groups) {
    out += "\n" + title + ":\n";
    for (const auto* const flag : flags) out += full_entry(head_of(*flag), with_default(flag->help, *flag), columns);
  }
  if (!command.examples.empty()) out += "\nExamples:\n";
  for (const auto& line : command.examples) out += "  $ " + line + "\n";
  if (!command.notes.empty()) out += "\n";
  for (const auto& line : wrapped(command.notes, columns)) out += line + "\n";
  return out;
}

std::size_t help_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return std::clamp<std::size_t>(size.ws_col, kLeastColumns, kMostColumns);
}

}  // namespace terrace::cli
