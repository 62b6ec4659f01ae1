#include <algorithm>

#include <terrace/examples/terrace/commands/commands.h>

namespace terrace::cli {

Command train_command();
Command plan_command();
Command generate_command();
Command chat_command();
Command eval_command();
Command doctor_command();
Command report_command();
Command top_command();
Command config_command();
Command ckpt_command();
Command launch_command();
Command train_tokenizer_command();
Command tokenize_command();
Command bench_command();
Command help_command();
Command version_command();
Command completions_command();
Command man_command();

const std::vector<Command>& commands() {
  static const std::vector<Command> all{train_command(),       plan_command(),   generate_command(), chat_command(),
                                        eval_command(),        doctor_command(), report_command(),   top_command(),
                                        config_command(),      ckpt_command(),   launch_command(),   train_tokenizer_command(),
                                        tokenize_command(),    bench_command(),  help_command(),     version_command(),
                                        completions_command(), man_command()};
  return all;
}

const Command* find_command(std::string_view name) {
  const auto at = std::ranges::find(commands(), name, &Command::name);
  return at == commands().end() ? nullptr : &*at;
}

}  // namespace terrace::cli
