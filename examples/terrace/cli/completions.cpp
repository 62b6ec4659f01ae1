#include <terrace/examples/terrace/cli/completions.h>

#include <terrace/examples/terrace/cli/help_text.h>

namespace terrace::cli {
namespace {

constexpr std::size_t kHintColumns = 60;

}  // namespace

std::string last_word(const CommandText& command) {
  const auto space = command.name.rfind(' ');
  return space == std::string::npos ? command.name : command.name.substr(space + 1);
}

std::vector<std::string> word_choices(const FlagText& word, const CommandText& program) {
  auto choices = word.choices();
  if (!word.name.starts_with("COMMAND")) return choices;
  for (const auto& command : program.commands) choices.push_back(command.name);
  return choices;
}

std::string hint_of(const FlagText& flag) { return flag.brief.empty() ? first_clauses(flag.help, kHintColumns) : flag.brief; }

std::string hint_of(const CommandText& command) { return first_clauses(command.help, kHintColumns); }

}  // namespace terrace::cli
