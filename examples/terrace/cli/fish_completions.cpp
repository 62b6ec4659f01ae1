#include <fmt/format.h>
#include <fmt/ranges.h>

#include <terrace/examples/terrace/cli/completions.h>

namespace terrace::cli {
namespace {

constexpr const char* kFishBegin = R"(# Completes the command line of terrace in fish. Written by: terrace completions fish

# The words before the cursor, without the program; of launch those behind its --.
function __terrace_words
    set -l words (commandline -opc)
    set -e words[1]
    if test "$words[1]" = launch
        if set -l at (contains -i -- -- $words)
            for i in (seq $at)
                set -e words[1]
            end
        end
    end
    for word in $words
        echo -- $word
    end
end

# Whether these are the first of the words.
function __terrace_in
    set -l words (__terrace_words)
    test (count $words) -ge (count $argv); or return 1
    for i in (seq (count $argv))
        test "$words[$i]" = "$argv[$i]"; or return 1
    end
end

# Whether these are all of the words.
function __terrace_at
    test (count (__terrace_words)) -eq (count $argv); and __terrace_in $argv
end

complete -c terrace -f
)";

std::string fish_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

void add_names(std::string& out, const CommandText& command) {
  const auto where = command.name.empty() ? "__terrace_at" : "__terrace_at " + command.name;
  for (const auto& sub : command.commands)
    out += fmt::format("complete -c terrace -n '{}' -a {} -d '{}'\n", where, last_word(sub), fish_text(hint_of(sub)));
}

void add_flags(std::string& out, const CommandText& command, const CommandText& program) {
  const auto where = command.name.empty() ? "__terrace_at" : "__terrace_in " + command.name;
  const auto begin = fmt::format("complete -c terrace -n '{}'", where);
  out += fmt::format("\n{} -s h -l help -d 'print the common flags (-h) or all flags (--help)'\n", begin);
  for (const auto& flag : command.flags) {
    const auto choices = flag.word ? word_choices(flag, program) : flag.choices();
    const auto proposed = choices.empty() ? std::string() : fmt::format(" -a '{}'", fmt::join(choices, " "));
    if (flag.word) {
      if (!choices.empty()) out += fmt::format("complete -c terrace -n '__terrace_at {}'{}\n", command.name, proposed);
      if (flag.takes_path()) out += begin + " -F\n";
      continue;
    }
    const bool is_long = flag.name.starts_with("--");
    const auto* const value = flag.value.empty() ? "" : flag.takes_path() ? " -r -F" : " -x";
    out += fmt::format("{} -{} {}{}{} -d '{}'\n", begin, is_long ? 'l' : 's', flag.name.substr(is_long ? 2 : 1), value,
                       proposed, fish_text(hint_of(flag)));
  }
}

}  // namespace

std::string fish_completions(const CommandText& program) {
  std::string out = kFishBegin;
  add_flags(out, program, program);
  add_names(out, program);
  for (const auto& command : program.commands) {
    add_names(out, command);
    if (command.commands.empty()) add_flags(out, command, program);
    for (const auto& sub : command.commands) add_flags(out, sub, program);
  }
  return out;
}

}  // namespace terrace::cli
