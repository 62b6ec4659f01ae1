#include <terrace/examples/terrace/cli/man_page.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <terrace/examples/terrace/cli/help_text.h>
#include <terrace/examples/terrace/config/exit_codes.h>

namespace terrace::cli {
namespace {

// Removes one character of UTF-8 from the beginning of the text and returns it.
char32_t take_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  char32_t code = size == 1 ? first : first & (0xffU >> (size + 1));
  for (std::size_t i = 1; i < std::min(size, text.size()); ++i)
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3fU);
  text.remove_prefix(std::min(size, text.size()));
  return code;
}

// Escapes text for troff, so that no character is a request, and a hyphen can be copied into a shell.
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
    else if (c == '|')
      out += "|\\:";  // allows a line break in a list of values
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

void add_settings(std::string& out, const std::vector<SettingsSection>& sections) {
  out +=
      ".SH SETTINGS\n"
      "Every setting is a flag, and a key of a TOML file for \\fB\\-\\-config\\fR, in the section that its heading names.\n";
  for (const auto& section : sections) {
    out += fmt::format(".SS {}\n", roff(section.title()));
    for (const auto& setting : section.settings) add_flag(out, setting);
  }
}

void add_exit_codes(std::string& out) {
  out += ".SH EXIT STATUS\n";
  for (const auto& exit : exit_codes()) {
    out +=
        fmt::format(".TP\n\\fB{}\\fR\n{}", static_cast<int>(exit.code), roff(fmt::format("{}: {}.", exit.brief, exit.meaning)));
    out += (exit.advice.empty() ? "" : " " + roff(fmt::format("Next: {}.", exit.advice))) + "\n";
  }
}

void add_examples(std::string& out, const CommandText& command) {
  for (const auto& line : command.examples) out += ".EX\n" + roff(line) + "\n.EE\n";
  for (const auto& sub : command.commands) add_examples(out, sub);
}

}  // namespace

std::string man_page(const CommandText& program, const std::string& version) {
  const auto sections = settings_of(program);
  std::size_t settings = 0;
  for (const auto& section : sections) settings += section.settings.size();
  std::string out = fmt::format(".TH TERRACE 1 \"\" \"{}\" \"User Commands\"\n", version);
  out += ".ad l\n";  // left-aligned, because a long list of values alone in its line cannot be stretched
  out += ".SH NAME\nterrace \\- trains language models that do not fit in memory\n";
  out += fmt::format(".SH SYNOPSIS\n.B terrace\n\\fICOMMAND\\fR [\\fIFLAGS\\fR]\n.SH DESCRIPTION\n{}.\n.PP\n{}\n",
                     roff(program.help), roff(program.notes));
  out += ".SH FLAGS\n";
  add_flag(out, help_flag());
  for (const auto& flag : program.flags) add_flag(out, flag);
  out += ".SH COMMANDS\n";
  for (const auto& command : program.commands) add_command_section(out, command, settings, program.notes);
  add_settings(out, sections);
  add_exit_codes(out);
  out += ".SH EXAMPLES\n";
  add_examples(out, program);
  return out;
}

}  // namespace terrace::cli
