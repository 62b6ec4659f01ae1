// terrace generate RUN --prompt TEXT: continues a text, one token after another, with a run's committed weights.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include <CLI/CLI.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/generate/generator.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/text_options.h>
#include <terrace/examples/terrace/data/run_text.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
namespace {

Exit run_generate(const CommandLine& line) {
  const auto& options = line.generate;
  const auto& config = line.config;  // the configuration of the run, with the budgets of this call
  const auto& run = line.positional.at(0);
  const RunText texts(config, run, options.tokenizer, options.stop_token);
  if (options.prompt.empty())
    throw base::Refused("generate needs --prompt, a text of at least one byte\n  see terrace generate --help");
  auto tokens = texts.tokens_of(options.prompt);
  const auto prompt_tokens = static_cast<std::int64_t>(tokens.size());
  if (prompt_tokens >= config.model.seq_len)
    throw base::Refused(
        fmt::format("--prompt has {0} {1}, but the model has {2} positions\n  give a --prompt of at most {3} {1}",
                    prompt_tokens, texts.unit(), config.model.seq_len, config.model.seq_len - 1));
  const auto positions = prompt_tokens + std::min(options.max_tokens, config.model.seq_len - prompt_tokens);
  WeightsReader weights(config, run, {.decode_positions = positions});
  lm::Generator generator(weights.engine(), weights.device(), config.model.vocab, weights.model().dtype, positions);

  std::string text = options.prompt;
  const auto say = [&](const std::string& bytes) {
    if (config.run.json) return;
    fmt::print("{}", shown_on(STDOUT_FILENO, bytes));
    std::fflush(stdout);
  };
  const auto end = generator.generate(
      tokens, texts, options.sampling, {.most_tokens = options.max_tokens},
      [&] { say(options.prompt); },  // printed only now, because the first positions may fail
      [&](std::string_view more) {
        text += more;
        say(std::string(more));
      });
  // The text may be bytes that are not UTF-8, which JSON must be.
  const nlohmann::json object{{"prompt", options.prompt},
                              {"text", text},
                              {"tokens", tokens.size() - static_cast<std::size_t>(prompt_tokens)},
                              {"end", name_of(end)}};
  fmt::print("{}\n", config.run.json ? object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) : "");
  return Exit::ok;
}

void add_generate_options(CLI::App& sub, CommandLine& out) {
  sub.add_option("--prompt", out.generate.prompt, "text to continue");
  add_tokenizer(sub, out.generate);
  sub.add_option("--max-tokens", out.generate.max_tokens,
                 "tokens (without --tokenizer, bytes) to generate; prompt and text together are at most --seq-len tokens")
      ->capture_default_str();
  add_sampling(sub, out.generate);
}

void check_generate(const CommandLine& line) {
  check_directories(line, kOfWeights, 1);
  check_sampling(line.generate, line.generate.max_tokens, line.command);
}

}  // namespace

Command generate_command() {
  return {.name = "generate",
          .help = "continue a text with a trained run, or with the model in a directory",
          .takes = {"memory", "threads", "json", "machine-profile"},
          .positional = "RUN|DIR",
          .examples = {"terrace generate runs/mine --prompt 'In the beginning'",
                       "terrace generate runs/mine --prompt 'Once' --temperature 0 --max-tokens 50"},
          .reads_weights = true,
          .add_options = add_generate_options,
          .check = check_generate,
          .run = run_generate};
}

}  // namespace terrace::cli
