#include <cstdio>

#include <nlohmann/json.hpp>

#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/options.h>

namespace terrace::cli {
namespace {

Exit print_config(const CommandLine& line) {
  std::fputs(line.config.run.json ? (to_json(line.config).dump(2) + "\n").c_str() : to_toml(line.config).c_str(), stdout);
  return Exit::ok;
}

}  // namespace

Command config_command() {
  return {
      .name = "config",
      .help = "print the effective configuration",
      .takes = {"all"},
      .examples = {"terrace config > run.toml", "terrace config --config run.toml --set train.steps=100",
                   "terrace config --preset lora-8b-24gb --model Llama-3.1-8B"},
      .shown = {{"--config", "TOML file with the same names; repeatable"}, {"--preset", "settings of a task; help lists them"}},
      .run = print_config};
}

}  // namespace terrace::cli
