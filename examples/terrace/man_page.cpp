#include <terrace/examples/terrace/man_page.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <terrace/examples/terrace/help_text.h>

namespace terrace::cli {
namespace {

// One character of UTF-8 at the beginning of the text, which is removed.
char32_t take_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t code = size == 1 ? first : first & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < std::min(size, text.size()); ++i)
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  text.remove_prefix(std::min(size, text.size()));
  return code;
}

// Text as troff prints it: no character is a request, and a hyphen can be copied into a shell.
std::string roff(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out = "\\&";
  while (!text.empty()) {
    const auto c = take_character(text);
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if (c == '\'')
      out += "\\(aq";
    else if (c == '`')
      out += "\\(ga";
    else if (c == '^')
      out += "\\(ha";
    else if (c == '~')
      out += "\\(ti";
    else if (c == '"')
      out += "\\(dq";
    else if (c >= 0x80)
      out += fmt::format("\\[u{:04X}]", static_cast<unsigned>(c));
    else
      out += static_cast<char>(c);
  }
  return out;
}

void add_flag(std::string& out, const FlagText& flag) {
  out += fmt::format(".TP\n\\fB{}\\fR", roff(flag.name));
  if (!flag.value.empty()) out += fmt::format(" \\fI{}\\fR", roff(flag.value));
  out += "\n" + roff(flag.help);
  if (!flag.fallback.empty()) out += roff(fmt::format(" (default {})", flag.fallback));
  out += "\n";
}

// A command with its own flags. Its settings are described once, for all commands.
void add_command_section(std::string& out, const CommandText& command, std::size_t settings_in_all,
                         const std::string& notes_of_all) {
  out += fmt::format(".SS {}\n{}.\n", roff(usage_of(command)), roff(command.help));
  std::string settings;
  std::size_t count = 0;
  for (const auto& flag : command.flags) {
    if (flag.setting) {
      settings += (count++ == 0 ? "" : ", ") + flag.name;
    } else {
      add_flag(out, flag);
    }
  }
  if (count == settings_in_all)
    out += ".PP\nIt takes all SETTINGS.\n";
  else if (count > 0)
    out += ".PP\n" + roff(fmt::format("It takes these SETTINGS: {}.", settings)) + "\n";
  if (command.notes != notes_of_all) out += ".PP\n" + roff(command.notes) + "\n";
  for (const auto& sub : command.commands) add_command_section(out, sub, settings_in_all, notes_of_all);
}

// The command that takes every setting has the most of them.
const CommandText& with_all_settings(const CommandText& program) {
  return *std::ranges::max_element(program.commands, {}, [](const CommandText& command) {
    return std::ranges::count_if(command.flags, &FlagText::setting);
  });
}

void add_settings(std::string& out, const std::vector<FlagText>& flags) {
  out +=
      ".SH SETTINGS\n"
      "Every setting is a flag, and a key of a TOML file for \\fB\\-\\-config\\fR, in the section that its heading names.\n";
  std::vector<std::string> sections;
  for (const auto& flag : flags)
    if (flag.setting && std::ranges::find(sections, flag.group) == sections.end()) sections.push_back(flag.group);
  for (const auto& section : sections) {
    out += fmt::format(".SS [{}]\n", section);
    for (const auto& flag : flags)
      if (flag.setting && flag.group == section && !flag.of_config_json) add_flag(out, flag);
  }
  out += ".SS Facts of a model, which \\-\\-model DIR reads in its config.json; in [model]\n";
  for (const auto& flag : flags)
    if (flag.of_config_json) add_flag(out, flag);
}

void add_examples(std::string& out, const CommandText& command) {
  for (const auto& line : command.examples) out += ".EX\n" + roff(line) + "\n.EE\n";
  for (const auto& sub : command.commands) add_examples(out, sub);
}

}  // namespace

std::string man_page(const CommandText& program, const std::string& version) {
  const auto& full = with_all_settings(program);
  const auto settings = static_cast<std::size_t>(std::ranges::count_if(full.flags, &FlagText::setting));
  std::string out = fmt::format(".TH TERRACE 1 \"\" \"{}\" \"User Commands\"\n", version);
  out += ".SH NAME\nterrace \\- trains language models that do not fit in memory\n";
  out += fmt::format(".SH SYNOPSIS\n.B terrace\n\\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n{}.\n.PP\n{}\n",
                     roff(program.help), roff(program.notes));
  out += ".SH FLAGS\n";
  add_flag(out, help_flag());
  for (const auto& flag : program.flags) add_flag(out, flag);
  out += ".SH COMMANDS\n";
  for (const auto& command : program.commands) add_command_section(out, command, settings, program.notes);
  add_settings(out, full.flags);
  out += ".SH EXAMPLES\n";
  add_examples(out, program);
  return out;
}

}  // namespace terrace::cli
