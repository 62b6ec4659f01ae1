#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/examples/terrace/cli/completions.h>

namespace terrace::cli {
namespace {

// Finds the commands below `words[1]`, and for launch the command behind its --.
constexpr const char* kZshBegin = R"(#compdef terrace
# Completes the command line of terrace in zsh. Written by: terrace completions zsh
_terrace() {
  local at
  local -a names
  if [[ $words[2] == launch ]]; then
    at=${words[(i)--]}
    if (( at < CURRENT )); then
      words=("${(@)words[at,-1]}")
      (( CURRENT -= at - 1 ))
    fi
  fi
)";

constexpr const char* kZshEnd = R"(}
if [[ $funcstack[1] == _terrace ]]; then
  _terrace "$@"
else
  compdef _terrace terrace
fi
)";

// Quotes text for single quotes. A backslash stands before characters that mean something to _arguments and _describe.
std::string zsh_text(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
      continue;
    }
    if (c == '\\' || special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// What _arguments proposes: files, choices or both. The space keeps it from adding words of its own.
std::string action_of(const std::vector<std::string>& choices, bool path) {
  if (choices.empty()) return path ? "_files" : " ";
  if (!path) return fmt::format("({})", fmt::join(choices, " "));
  return fmt::format(" _alternative \"values\\:value\\:({})\" \"files\\:file\\:_files\"", fmt::join(choices, " "));
}

std::string zsh_flags(const CommandText& command, const CommandText& program, const std::string& indent) {
  std::string out = "_arguments \\\n";
  out += indent + "'-h[print the common flags]' '--help[print all flags]'";
  bool rest = false;
  for (const auto& flag : command.flags) {
    out += " \\\n" + indent;
    if (flag.word) {
      const auto choices = word_choices(flag, program);
      if (!choices.empty()) out += fmt::format("'1:{}:{}'", zsh_text(hint_of(flag), ":"), action_of(choices, false));
      if (choices.empty() || flag.takes_path())
        out += fmt::format("{}'*:{}:{}'", choices.empty() ? "" : " ", zsh_text(hint_of(flag), ":"),
                           action_of({}, flag.takes_path()));
      rest = true;
    } else if (flag.value.empty()) {
      out += fmt::format("'{}[{}]'", flag.name, zsh_text(hint_of(flag), "[]"));
    } else {
      out += fmt::format("'*{}{}[{}]:{}:{}'", flag.name, flag.name.starts_with("--") ? "=" : "", zsh_text(hint_of(flag), "[]"),
                         zsh_text(flag.name.substr(flag.name.find_first_not_of('-')), ":"),
                         action_of(flag.choices(), flag.takes_path()));
      // More values of a flag that takes several follow without the flag.
      if (flag.many && flag.takes_path() && !rest) {
        out += " '*:file:_files'";
        rest = true;
      }
    }
  }
  return out + "\n";
}

std::string zsh_names(const CommandText& command, const std::string& indent) {
  auto out = indent + "names=(\n";
  for (const auto& sub : command.commands)
    out += fmt::format("{}  '{}:{}'\n", indent, last_word(sub), zsh_text(hint_of(sub), ""));
  return out + indent + ")\n" + indent + "_describe command names\n";
}

}  // namespace

std::string zsh_completions(const CommandText& program) {
  std::string out = kZshBegin;
  out += "  if (( CURRENT == 2 )); then\n" + zsh_names(program, "    ") + "    return\n  fi\n";
  out += "  shift words\n  (( CURRENT-- ))\n  case $words[1] in\n";
  for (const auto& command : program.commands) {
    out += fmt::format("    {})\n", command.name);
    if (command.commands.empty()) {
      out += "      " + zsh_flags(command, program, "        ");
    } else {
      out += "      if (( CURRENT == 2 )); then\n" + zsh_names(command, "        ") + "        return\n      fi\n";
      out += "      shift words\n      (( CURRENT-- ))\n      case $words[1] in\n";
      for (const auto& sub : command.commands)
        out += fmt::format("        {})\n          {}          ;;\n", last_word(sub), zsh_flags(sub, program, "            "));
      out += "      esac\n";
    }
    out += "      ;;\n";
  }
  return out + "  esac\n" + kZshEnd;
}

}  // namespace terrace::cli
