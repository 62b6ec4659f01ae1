#include <terrace/examples/terrace/completions.h>

#include <terrace/examples/terrace/help_text.h>

namespace terrace::cli {
namespace {

constexpr std::size_t kHintColumns = 60;

}  // namespace

std::string last_word(const CommandText& command) {
  const auto space = command.name.rfind(' ');
  return space == std::string::npos ? command.name : command.name.substr(space + 1);
}

std::vector<std::string> word_choices(const FlagText& word, const CommandText& program) {
  if (word.name != "COMMAND") return word.choices();
  std::vector<std::string> names;
  for (const auto& command : program.commands) names.push_back(command.name);
  return names;
}

std::string hint_of(const FlagText& flag) { return flag.brief.empty() ? first_clauses(flag.help, kHintColumns) : flag.brief; }

std::string hint_of(const CommandText& command) { return first_clauses(command.help, kHintColumns); }

}  // namespace terrace::cli
