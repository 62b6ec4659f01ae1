#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/text_options.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/trainer.h>

namespace terrace::cli {
namespace {

void check_train(const CommandLine& line) {
  if (line.config.data.files.empty()) refuse("train needs a corpus: --data FILE...", "train");
  demand_files("--data", data_files(line.config), "train");
  if (!line.config.data.eval_files.empty()) demand_files("--eval-data", data_files(of_evaluation(line.config)), "train");
}

Exit run_train(const CommandLine& line) { return train(line.config); }

}  // namespace

Command train_command() {
  return {
      .name = "train",
      .help = "train a model within the given memory budgets",
      .takes = {"all"},
      .examples = {"terrace train --data book.txt --nvme-path /mnt/disk --host-memory 2GiB",
                   "terrace train --preset lora-8b-24gb --model Llama-3.1-8B --data chats.jsonl",
                   "terrace train --config run.toml --steps 5000 --resume auto"},
      .shown = {{"--config", "TOML file with the same names; repeatable"}, {"--preset", "settings of a task; help lists them"}},
      .check = check_train,
      .run = run_train};
}

}  // namespace terrace::cli
