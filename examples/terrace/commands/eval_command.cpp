// terrace eval RUN|DIR… --data FILE…: the mean loss over the targets of the data, under a run's committed weights or a model's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/data/mixture.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/commands/text_options.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/data/check_tokens.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/found_data.h>
#include <terrace/examples/terrace/data/run_data.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/run/weights_reader.h>

namespace terrace::cli {
namespace {

struct Evaluated {
  std::string model, source;
  double loss_sum = 0;
  std::uint64_t targets = 0;
  [[nodiscard]] std::optional<double> loss() const {
    return targets == 0 ? std::nullopt : std::optional(loss_sum / static_cast<double>(targets));
  }
};

std::int64_t positions_of(const RunConfig& config, const std::string& directory, const EvalOptions& options) {
  if (options.seq_len > config.model.seq_len)
    throw base::Refused(fmt::format("--seq-len {}: the model in {} has {} positions\n  give --seq-len {} or less",
                                    options.seq_len, directory, config.model.seq_len, config.model.seq_len));
  if (options.seq_len > 0) return options.seq_len;
  return is_run(directory) ? config.model.seq_len : std::min(config.model.seq_len, EvalOptions::kMostPositions);
}

// One configuration for each source, so that each has its own loss. All of a source is read as training data.
std::vector<RunConfig> data_of(RunConfig config, const std::string& directory, const EvalOptions& options,
                               const std::filesystem::path& tokenizer) {
  const bool of_bytes = is_run(directory) && config.data.format == DataFormat::bytes;
  config.model.seq_len = positions_of(config, directory, options);
  config.train.batch_size = options.batch_size > 0
                                ? options.batch_size
                                : std::max<std::int64_t>(1, EvalOptions::kMostPositions / config.model.seq_len);
  config.train.eval_batches = 0;  // nothing is held out
  config.data.eval_files.clear();
  config.run.resume = {};
  config.data.files = options.data;
  config.data.format = value_of<DataFormat>(options.data_format);
  if (!tokenizer.empty()) config.data.tokenizer = tokenizer.string();
  if (config.data.format == DataFormat::automatic) config.data.format = found_format(config);
  if (config.data.format == DataFormat::text && of_bytes) config.data.format = DataFormat::bytes;  // as the run did
  make_token_files(config);
  auto as_given = config;
  as_given.found.token_files.clear();
  const auto sources = data_sources(as_given);
  const bool weighted = std::ranges::any_of(options.data, [](const auto& word) { return lm::is_number(word.string()); });
  std::vector<RunConfig> all;
  const auto add = [&](std::vector<std::filesystem::path> files) {
    all.push_back(config);
    all.back().data.files = std::move(files);
  };
  for (const auto& source : sources)
    if (weighted)
      add(source.files);
    else
      for (const auto& file : source.files) add({file});
  return all;
}

void note_progress(const std::string& source, std::uint64_t done, std::uint64_t all) {
  base::say(stderr, fmt::format("{}: {} of {} sequences\n", source, done, all));
}

Evaluated evaluate(WeightsReader& weights, const RunConfig& data_config, std::uint64_t most) {
  constexpr auto kBetweenNotes = std::chrono::seconds(30);
  Team alone;
  demand_tokens_of_vocabulary(data_config, alone);
  RunData data(data_config);
  for (const auto& warning : data.warnings()) base::warn(warning);
  const auto rows = static_cast<std::size_t>(data_config.train.batch_size);
  const auto positions = static_cast<std::size_t>(data_config.model.seq_len);
  const BatchReader read(
      [&](Split split, auto sequences, auto tokens, auto targets) { return data.read(split, sequences, tokens, targets); },
      data.documents(), weights.model().place.context(), positions, rows);
  Evaluated found{.model = {}, .source = data_sources(data_config).front().name};
  const auto all = most == 0 ? data.sequences() : std::min(most, data.sequences());
  Batch batch;
  auto noted = std::chrono::steady_clock::now();
  for (std::uint64_t first = 0; first < all; first += rows) {
    std::vector<std::uint64_t> sequences;
    for (std::uint64_t row = 0; row < rows; ++row) sequences.push_back(std::min(first + row, all - 1));
    if (!read(Split::training, sequences, batch)) std::rethrow_exception(data.error());
    // If a micro-batch is not full, its last sequence is repeated; the repetitions have no targets.
    const auto real = static_cast<std::size_t>(std::min<std::uint64_t>(rows, all - first)) * positions;
    std::fill(batch.targets.begin() + static_cast<std::ptrdiff_t>(real), batch.targets.end(), -1);
    found.targets += static_cast<std::uint64_t>(std::ranges::count_if(batch.targets, [](auto target) { return target >= 0; }));
    found.loss_sum +=
        weights.engine()
            .evaluate({.tokens = batch.tokens, .targets = batch.targets, .document_begins = batch.document_begins})
            .front();
    if (const auto now = std::chrono::steady_clock::now(); now - noted >= kBetweenNotes) {
      note_progress(found.source, std::min(first + rows, all), all);
      noted = now;
    }
  }
  return found;
}

// Halves the number of sequences at a time until they fit, unless the user gave it.
WeightsReader reader_of(const RunConfig& config, const std::string& directory, std::vector<RunConfig>& sources, bool given) {
  for (;;) try {
      return {config,
              directory,
              {.shape = {.batch = {sources.front().train.batch_size, sources.front().model.seq_len}, .micro_batches = 1}}};
    } catch (const Error& error) {
      if (given || error.kind() != ErrorKind::does_not_fit || sources.front().train.batch_size == 1) throw;
      for (auto& source : sources) source.train.batch_size /= 2;
    }
}

std::vector<Evaluated> evaluate_all(const CommandLine& line) {
  std::vector<Evaluated> found;
  for (std::size_t i = 0; i < line.positional.size(); ++i) {
    const auto& directory = line.positional[i];
    auto sources = data_of(line.configs[i], directory, line.eval, line.generate.tokenizer);
    auto weights = reader_of(line.configs[i], directory, sources, line.eval.batch_size > 0);
    Evaluated of_all{.model = directory, .source = "all"};
    for (const auto& source : sources) {
      auto one = evaluate(weights, source, static_cast<std::uint64_t>(line.eval.sequences));
      one.model = directory;
      of_all.loss_sum += one.loss_sum;
      of_all.targets += one.targets;
      found.push_back(std::move(one));
    }
    if (sources.size() > 1) found.push_back(std::move(of_all));
  }
  return found;
}

void print_table(const std::vector<Evaluated>& found) {
  std::size_t model = 5, source = 4;
  for (const auto& one : found) {
    model = std::max(model, base::printable(one.model).size());
    source = std::max(source, base::printable(one.source).size());
  }
  fmt::print("{:<{}}  {:<{}}  {:>10}  {:>12}  {:>12}\n", "model", model, "data", source, "loss", "perplexity", "tokens");
  for (const auto& one : found) {
    const auto loss = one.loss();
    fmt::print("{:<{}}  {:<{}}  {:>10}  {:>12}  {:>12}\n", base::printable(one.model), model, base::printable(one.source),
               source, loss ? fmt::format("{:.5f}", *loss) : "no targets", loss ? fmt::format("{:.5g}", std::exp(*loss)) : "",
               one.targets);
  }
}

nlohmann::json to_json(const std::vector<Evaluated>& found) {
  auto all = nlohmann::json::array();
  for (const auto& one : found) {
    all.push_back({{"model", one.model}, {"data", one.source}, {"tokens", one.targets}});
    if (const auto loss = one.loss()) all.back().update({{"loss", *loss}, {"perplexity", std::exp(*loss)}});
  }
  return all;
}

Exit run_eval(const CommandLine& line) {
  const auto found = evaluate_all(line);
  if (line.config.run.json)
    fmt::print("{}\n", to_json(found).dump());
  else
    print_table(found);
  return Exit::ok;
}

void add_eval_options(CLI::App& sub, CommandLine& out) {
  auto& eval = out.eval;
  sub.add_option("--data", eval.data,
                 "files to evaluate on, each for itself; with weights, as in 7 web.bin 3 code.bin, those behind each number "
                 "together")
      ->type_name("PATH");
  const auto* const format = find_option("data-format");
  sub.add_option("--data-format", eval.data_format, "as of train")
      ->capture_default_str()
      ->check(CLI::IsMember(std::vector<std::string>(format->choices.begin(), format->choices.end())));
  sub.add_option("--seq-len", eval.seq_len,
                 fmt::format("tokens in a sequence; 0: as many as the run has, of a model in a directory at most {}",
                             EvalOptions::kMostPositions))
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31));
  sub.add_option("--batch-size", eval.batch_size,
                 fmt::format("sequences that are computed together; 0: as many as have {} tokens, or fewer if they do not fit",
                             EvalOptions::kMostPositions))
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20));
  add_tokenizer(sub, out.generate);
  sub.add_option("--sequences", eval.sequences, "read so many sequences of each source; 0: all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40));
}

void check_eval(const CommandLine& line) {
  check_directories(line, kOfWeights, 0);
  if (line.eval.data.empty()) refuse("eval needs --data, files to evaluate on", "eval");
  RunConfig of_data;
  of_data.data.files = line.eval.data;
  demand_files("--data", data_files(of_data), "eval");
}

}  // namespace

Command eval_command() {
  return {.name = "eval",
          .help = "the loss of trained runs and of models in directories on data, without training",
          .takes = {"memory", "threads", "json", "machine-profile"},
          .positional = "RUN|DIR...",
          .examples = {"terrace eval runs/mine --data other.txt", "terrace eval runs/mine Llama-3.2-1B --data chats.jsonl"},
          .reads_weights = true,
          .add_options = add_eval_options,
          .check = check_eval,
          .run = run_eval};
}

}  // namespace terrace::cli
