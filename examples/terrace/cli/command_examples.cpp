#include <terrace/examples/terrace/cli/command_examples.h>

#include <algorithm>

namespace terrace::cli {

const CommandExamples& examples_of(std::string_view command) {
  static const std::vector<CommandExamples> all{
      {"",
       {"terrace train --data book.txt --steps 1000", "terrace generate runs/terrace --prompt 'Once upon a time'",
        "terrace help train"},
       {}},
      {"train",
       {"terrace train --data book.txt --nvme-path /mnt/disk --host-memory 2GiB",
        "terrace train --preset lora-8b-24gb --model Llama-3.1-8B --data chats.jsonl",
        "terrace train --config run.toml --steps 5000 --resume auto"},
       {{"--config", "TOML file with the same names; repeatable"}, {"--preset", "settings of a task; help lists them"}}},
      {"plan",
       {"terrace plan --preset full-8b-24gb-nvme --model Llama-3.1-8B", "terrace plan --config run.toml --dp 8 --search",
        "terrace plan --config run.toml --trace step.json"},
       {{"--search", "plan other meshes, and print the fastest"}, {"--preset", "settings of a task; help lists them"}}},
      {"config",
       {"terrace config > run.toml", "terrace config --config run.toml --set train.steps=100",
        "terrace config --preset lora-8b-24gb --model Llama-3.1-8B"},
       {{"--config", "TOML file with the same names; repeatable"}, {"--preset", "settings of a task; help lists them"}}},
      {"generate",
       {"terrace generate runs/mine --prompt 'In the beginning'",
        "terrace generate runs/mine --prompt 'Once' --temperature 0 --max-tokens 50"},
       {}},
      {"chat", {"terrace chat runs/mine", "terrace chat runs/mine --system 'Answer in one sentence.'"}, {}},
      {"eval", {"terrace eval runs/mine --data other.txt", "terrace eval runs/mine Llama-3.2-1B --data chats.jsonl"}, {}},
      {"doctor", {"terrace doctor", "terrace doctor --measure --nvme-path /mnt/disk"}, {}},
      {"report", {"terrace report runs/mine", "terrace report runs/one runs/other", "terrace report all.json"}, {}},
      {"top", {"terrace top runs/mine", "terrace top runs/one runs/other --once"}, {}},
      {"ckpt",
       {"terrace ckpt list runs/mine", "terrace ckpt verify runs/mine --step 100", "terrace ckpt export runs/mine mine-hf"},
       {}},
      {"launch",
       {"terrace launch -n 4 -- train --data book.txt --zero 3",
        "terrace launch -n 2 -- train --config run.toml --resume auto"},
       {}},
      {"train-tokenizer", {"terrace train-tokenizer book.txt --out tokenizer.json --vocab 8192"}, {}},
      {"tokenize",
       {"terrace tokenize book.txt --tokenizer tokenizer.json --out book.bin",
        "terrace tokenize a.jsonl b.jsonl --tokenizer tokenizer.json --out ab.bin"},
       {}},
      {"bench",
       {"terrace bench nvme /mnt/disk", "terrace bench step --layers 12 --hidden 768",
        "terrace bench all /mnt/disk --json > all.json"},
       {}},
      {"help", {"terrace help train", "terrace help bench nvme"}, {}},
      {"completions",
       {"source <(terrace completions bash)", "terrace completions zsh > ~/.zfunc/_terrace",
        "terrace completions fish > ~/.config/fish/completions/terrace.fish"},
       {}},
      {"man", {"terrace man > terrace.1", "terrace man | man -l -", "terrace man flags"}, {}},
  };
  static const CommandExamples none;
  const auto found = std::ranges::find(all, command, &CommandExamples::command);
  return found == all.end() ? none : *found;
}

}  // namespace terrace::cli
