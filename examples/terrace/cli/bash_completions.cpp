#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/examples/terrace/cli/completions.h>

namespace terrace::cli {
namespace {

// Finds the command that the words name, and the flag whose value is at the cursor.
constexpr const char* kBashBegin = R"(# Completes the command line of terrace in bash. Written by: terrace completions bash
_terrace() {
  local word=${COMP_WORDS[COMP_CWORD]} last=$((COMP_CWORD - 1)) at=1 i flag= command
  local flags= switches= several= paths= values= arguments= files= seen=
  COMPREPLY=()
  # bash cuts --flag=value into three words.
  if [[ $word == = ]]; then
    word=
  elif [[ ${COMP_WORDS[last]} == = ]]; then
    last=$((last - 1))
  fi
  # launch has another command behind its --.
  if [[ ${COMP_WORDS[1]} == launch ]]; then
    for ((i = 2; i < COMP_CWORD; ++i)); do
      if [[ ${COMP_WORDS[i]} == -- ]]; then
        at=$((i + 1))
        break
      fi
    done
  fi
  for ((i = last; i > at; --i)); do
    if [[ ${COMP_WORDS[i]} == -?* ]]; then
      flag=${COMP_WORDS[i]}
      break
    fi
  done
  command=${COMP_WORDS[at]}
)";

// Proposes the values of the flag, or flags, or what the command takes without a flag.
constexpr const char* kBashEnd = R"(  if [[ $word == -* ]]; then
    arguments=$flags
  elif [[ -n $flag && " $switches " != *" $flag "* ]] && { ((i == last)) || [[ " $several " == *" $flag "* ]]; }; then
    arguments=$values files=
    [[ " $paths " == *" $flag "* ]] && files=yes
  else
    for ((i = at + 1; i <= last; ++i)); do
      [[ " $arguments " == *" ${COMP_WORDS[i]} "* ]] && seen=yes
    done
    if [[ $seen ]]; then
      arguments=
    elif [[ $arguments ]]; then
      files=
    elif [[ -z $files ]]; then
      arguments=$flags
    fi
  fi
  mapfile -t COMPREPLY < <(compgen -W "$arguments" -- "$word")
  if [[ $files ]]; then
    local found
    mapfile -t found < <(compgen -f -- "${word/#\~\//$HOME/}")
    COMPREPLY+=("${found[@]}")
    compopt -o filenames 2>/dev/null
  fi
}
complete -F _terrace terrace
)";

// The branch of the `case` for one command.
std::string branch(const CommandText& command, const CommandText& program) {
  std::vector<std::string> flags{"-h", "--help"}, switches = flags, several, paths, arguments;
  std::string values;
  bool files = false;
  for (const auto& flag : command.flags) {
    if (flag.word) {
      files = files || flag.takes_path();
      for (const auto& choice : word_choices(flag, program)) arguments.push_back(choice);
      continue;
    }
    flags.push_back(flag.name);
    if (flag.value.empty()) switches.push_back(flag.name);
    if (flag.many) several.push_back(flag.name);
    if (flag.takes_path()) paths.push_back(flag.name);
    if (const auto choices = flag.choices(); !choices.empty())
      values += fmt::format("        {}) values='{}' ;;\n", flag.name, fmt::join(choices, " "));
  }
  std::string out = fmt::format("    {}{}{})\n", command.name.find(' ') == std::string::npos ? "" : "'", command.name,
                                command.name.find(' ') == std::string::npos ? "" : "'");
  const auto line = [&](const char* name, const std::vector<std::string>& words) {
    if (!words.empty()) out += fmt::format("      {}='{}'\n", name, fmt::join(words, " "));
  };
  line("flags", flags);
  line("switches", switches);
  line("several", several);
  line("paths", paths);
  line("arguments", arguments);
  if (files) out += "      files=yes\n";
  if (!values.empty()) out += "      case $flag in\n" + values + "      esac\n";
  return out + "      ;;\n";
}

std::vector<std::string> names_below(const CommandText& command) {
  std::vector<std::string> names;
  for (const auto& sub : command.commands) names.push_back(last_word(sub));
  return names;
}

}  // namespace

std::string bash_completions(const CommandText& program) {
  std::string out = kBashBegin, branches;
  out += fmt::format(
      "  if ((COMP_CWORD == at)); then\n"
      "    mapfile -t COMPREPLY < <(compgen -W '{} -h --help --version' -- \"$word\")\n"
      "    return\n"
      "  fi\n",
      fmt::join(names_below(program), " "));
  for (const auto& command : program.commands) {
    if (command.commands.empty()) {
      branches += branch(command, program);
      continue;
    }
    out += fmt::format(
        "  if [[ $command == {} ]]; then\n"
        "    if ((COMP_CWORD == at + 1)); then\n"
        "      mapfile -t COMPREPLY < <(compgen -W '{} -h --help' -- \"$word\")\n"
        "      return\n"
        "    fi\n"
        "    at=$((at + 1))\n"
        "    command+=\" ${{COMP_WORDS[at]}}\"\n"
        "  fi\n",
        command.name, fmt::join(names_below(command), " "));
    for (const auto& sub : command.commands) branches += branch(sub, program);
  }
  return out + "  case $command in\n" + branches + "  esac\n" + kBashEnd;
}

}  // namespace terrace::cli
