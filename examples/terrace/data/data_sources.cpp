#include <terrace/examples/terrace/data/data_sources.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/mixture.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/run/run_dir.h>

namespace terrace::cli {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw base::Refused(
      fmt::format("--data: {}\n  give each source's weight before its files, as in --data 7 web.bin 3 code.bin; a "
                  "file whose name is a number is written ./7; the same goes for --eval-data",
                  why));
}

void name(std::vector<DataSource>& sources) {
  for (auto at = sources.begin(); at != sources.end(); ++at) {
    const auto file = base::printable(at->files.front().filename().string());
    const auto taken = [&] { return std::any_of(sources.begin(), at, [&](const auto& s) { return s.name == at->name; }); };
    at->name = file;
    for (int number = 2; taken(); ++number) at->name = fmt::format("{} ({})", file, number);
  }
}

}  // namespace

std::vector<DataSource> data_sources(const RunConfig& config) {
  std::vector<DataSource> sources;
  std::vector<std::string> weights;
  const auto is_weight = [](const auto& word) { return lm::is_number(word.string()); };
  const bool weighted = std::ranges::any_of(config.data.files, is_weight);
  for (const auto& word : config.data.files) {
    if (is_weight(word)) {
      if (!sources.empty() && sources.back().files.empty()) refuse(fmt::format("the weight {} has no files", weights.back()));
      weights.push_back(word.string());
      sources.emplace_back();
      continue;
    }
    if (sources.empty()) sources.emplace_back();
    if (weighted && sources.size() > weights.size())
      refuse(fmt::format("{} has no weight, and other files have one", base::printable(word.string())));
    sources.back().files.push_back(word);
  }
  if (sources.empty()) return sources;
  if (sources.back().files.empty()) refuse(fmt::format("the weight {} has no files", weights.back()));
  if (!weights.empty()) try {
      const auto whole = lm::whole_weights(weights);
      for (std::size_t s = 0; s < sources.size(); ++s) sources[s].weight = whole[s];
    } catch (const Error& error) {
      refuse(error.what());
    }
  name(sources);
  for (auto& source : sources)
    for (auto& file : source.files)
      if (const auto ids = config.found.token_files.find(file.string()); ids != config.found.token_files.end())
        file = ids->second;
  return sources;
}

std::vector<std::filesystem::path> data_files(const RunConfig& config) {
  std::vector<std::filesystem::path> files;
  for (auto& source : data_sources(config)) std::ranges::move(source.files, std::back_inserter(files));
  return files;
}

RunConfig of_evaluation(RunConfig config) {
  if (!config.data.eval_files.empty()) config.data.files = config.data.eval_files;
  return config;
}

std::uint64_t evaluated_batches(const RunConfig& config) {
  return static_cast<std::uint64_t>(config.train.eval_batches) *
         std::max<std::size_t>(1, data_sources(of_evaluation(config)).size());
}

std::string data_lines(const RunConfig& config) {
  const auto sources = data_sources(config);
  if (sources.size() < 2) return {};
  std::uint64_t sum = 0;
  for (const auto& source : sources) sum += source.weight;
  const auto sequences = static_cast<double>(config.train.batch_size * config.train.grad_accumulation * config.parallel.ep *
                                             std::max<std::int64_t>(1, config.parallel.dp)) *
                         static_cast<double>(config.train.steps);
  std::string lines;
  for (const auto& source : sources) {
    const auto share = static_cast<double>(source.weight) / static_cast<double>(sum);
    lines += fmt::format("data {}: {:.4g} % of the sequences", source.name, 100 * share);
    if (config.data.format != DataFormat::conversations && has_token_files(config)) {
      const auto format = format_of_tokens(config);
      std::uint64_t tokens = 0;
      for (const auto& file : source.files) tokens += lm::tokens_in_file(file, format);
      const auto plan = lm::plan_sequences(tokens, static_cast<std::uint64_t>(config.model.seq_len), holds_out(config));
      lines += fmt::format(", {} to train on, {:.4g} epochs in this run", plan.training_sequences,
                           share * sequences / static_cast<double>(plan.training_sequences));
    }
    lines += '\n';
  }
  return lines;
}

}  // namespace terrace::cli
