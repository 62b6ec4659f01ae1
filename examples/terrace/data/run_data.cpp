#include <terrace/examples/terrace/data/run_data.h>

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>
#include <utility>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/chat/conversation_data.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/token_sequences.h>
#include <terrace/examples/terrace/data/conversation_cache.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::cli {

std::string describe_template(const RunConfig& config) {
  const auto named = lm::read_tokenizer_config(tokenizer_of(config).parent_path());
  if (!named.chat_template) return {};
  auto all = *named.chat_template;
  for (const auto& [key, token] : named.tokens) all += '\0' + key + '\0' + token;
  return fmt::format("{} bytes with checksum {:016x}", named.chat_template->size(), checksum_of(std::as_bytes(std::span(all))));
}

std::optional<std::int64_t> template_time(const RunConfig& config) {
  if (config.data.template_date.empty()) return {};
  std::tm day{};
  const auto* const end = ::strptime(config.data.template_date.c_str(), "%Y-%m-%d", &day);
  day.tm_hour = 12;
  day.tm_isdst = -1;
  const auto wanted = day;
  const auto time = end != nullptr && *end == '\0' ? std::mktime(&day) : std::time_t{-1};
  if (time == std::time_t{-1} || day.tm_mday != wanted.tm_mday)
    throw base::Refused(
        fmt::format("--template-date {} is no day\n  write it as 2026-11-26", base::printable(config.data.template_date)));
  return time;
}

namespace {

// The windows of all sources together take as many bytes as those of one corpus.
lm::CorpusWindows windows_of(std::size_t sources) {
  constexpr std::size_t kLeast = 16 << 10;
  lm::CorpusWindows windows;
  windows.bytes = std::max(kLeast, windows.bytes / sources);
  windows.checked = std::max<std::size_t>(1, windows.checked / sources);
  return windows;
}

std::string summary_of(const lm::ConversationData& data) {
  auto text = fmt::format("{} conversations: {} sequences to train on, {} held out", data.conversations(),
                          data.sequences(Split::training), data.sequences(Split::held_out));
  if (data.documents() > data.conversations())
    text +=
        fmt::format("; as the chat template writes earlier answers in another way, they are {} documents", data.documents());
  if (data.skipped() > 0)
    text += fmt::format("; {} lines that are none were skipped, the first: {}", data.skipped(), data.first_skipped());
  if (data.cut() > 0) text += fmt::format("; {} are longer than --seq-len and are cut", data.cut());
  if (data.untaught() > 0)
    text += fmt::format("; {} have no answer within --seq-len, so nothing is learned from them", data.untaught());
  if (data.sequences(Split::held_out) > 0 && !data.learns_held_out())
    text += "; none of the held-out ones has an answer there, so there is no held-out loss";
  return text;
}

std::string warning_of(const lm::ConversationData& data, std::int64_t seq_len, const std::string& name) {
  if (data.share_cut_off() < 0.5 && 2 * data.untaught() < data.documents()) return {};
  return fmt::format(
      "--seq-len {} cuts off {:.0f} % of the tokens of the answers in {}, and leaves nothing to learn of {} of {} "
      "conversations; raise --seq-len, or shorten what stands before the answers",
      seq_len, 100 * data.share_cut_off(), name, data.untaught(), data.documents());
}

lm::Mixture mixture_of(const RunConfig& config) {
  std::vector<std::uint64_t> weights;
  for (const auto& source : data_sources(config)) weights.push_back(source.weight);
  return {weights, config.train.seed};
}

}  // namespace

RunData::Vocabulary::Vocabulary(const RunConfig& config)
    : tokenizer(read_tokenizer(tokenizer_of(config), config)),
      format(tokenizer, lm::read_tokenizer_config(tokenizer_of(config).parent_path()), template_time(config)) {}

RunData::RunData(const RunConfig& config)
    : counted_(mixture_of(config)),
      vocabulary_(vocabulary_of(config)),
      sources_(sources_of(config, holds_out(config))),
      of_evaluation_(config.data.eval_files.empty() ? Sources() : sources_of(of_evaluation(config), false)),
      mixed_(data_of(sources_), counted_, static_cast<std::uint64_t>(config.train.batch_size), data_of(of_evaluation_)),
      evaluated_(static_cast<std::uint64_t>(config.train.eval_batches * config.train.batch_size)),
      has_documents_(config.data.format == DataFormat::conversations || config.data.document_separator >= 0) {}

std::unique_ptr<RunData::Vocabulary> RunData::vocabulary_of(const RunConfig& config) {
  if (config.data.format == DataFormat::conversations) return std::make_unique<Vocabulary>(config);
  // The run only keeps its tokenizer, but a wrong one must be found now.
  if (!config.data.tokenizer.empty()) static_cast<void>(read_tokenizer(config.data.tokenizer, config));
  return nullptr;
}

lm::MixedSequences::Sources RunData::data_of(const Sources& sources) {
  lm::MixedSequences::Sources all;
  for (const auto& source : sources) all.push_back(source.data);
  return all;
}

RunData::Source RunData::conversations_of(const RunConfig& config, const DataSource& source, bool holds_out) const {
  std::vector<lm::EncodedConversations> files;
  for (const auto& file : source.files)
    files.push_back(encoded_conversations(file, config, vocabulary_->tokenizer, vocabulary_->format));
  const auto data = std::make_shared<lm::ConversationData>(std::move(files), config.train.seed, holds_out);
  return {.name = source.name,
          .data = data,
          .description = summary_of(*data),
          .warning = warning_of(*data, config.model.seq_len, source.name),
          .checksums = data->checksums()};
}

RunData::Source RunData::tokens_of(const RunConfig& config, const DataSource& source, std::size_t sources, bool holds_out) {
  const auto data =
      std::make_shared<lm::TokenSequences>(lm::Corpus::open(source.files, windows_of(sources), format_of_tokens(config)),
                                           static_cast<std::uint64_t>(config.model.seq_len), config.train.seed,
                                           static_cast<std::int32_t>(config.data.document_separator), holds_out);
  return {.name = source.name,
          .data = data,
          .description = fmt::format("{} sequences to train on, {} held out", data->sequences(Split::training),
                                     data->sequences(Split::held_out))};
}

RunData::Sources RunData::sources_of(const RunConfig& config, bool holds_out) const {
  Sources all;
  const auto sources = data_sources(config);
  const auto mixture = mixture_of(config);
  for (const auto& source : sources) try {
      const auto share = mixture.share(all.size());
      all.push_back(vocabulary_ ? conversations_of(config, source, holds_out)
                                : tokens_of(config, source, sources.size(), holds_out));
      all.back().share = share;
    } catch (const Error& error) {
      if (sources.size() == 1) throw;
      throw Error(fmt::format("source {} of the data: {}", source.name, error.what()), error);
    }
  return all;
}

std::uint64_t RunData::sequences() const { return sources_.front().data->sequences(Split::training); }

bool RunData::read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) try {
  mixed_.fill(split, sequences, tokens, targets);
  return error_ == nullptr;
} catch (const Error&) {
  error_ = std::current_exception();
  return false;
}

BatchReader::Number RunData::documents() const { return has_documents_ ? mixed_.numbers() : BatchReader::Number(); }

std::vector<std::string> RunData::notes() const {
  std::vector<std::string> lines;
  const bool several = sources_.size() > 1;
  for (const auto& source : sources_) {
    const auto of_source = several ? fmt::format("data {}: ", source.name) : "";
    if (several)
      lines.push_back(fmt::format("{}{:.4g} % of the sequences; {}", of_source, 100 * source.share, source.description));
    else if (vocabulary_)
      lines.push_back(source.description);
    if (!of_evaluation_.empty()) continue;
    if (const auto held_out = source.data->sequences(Split::held_out); held_out > 0 && evaluated_ > held_out)
      lines.push_back(fmt::format(
          "{}an evaluation reads {} sequences (--eval-batches × --batch-size), and {} {} held out, so "
          "it reads {} again",
          of_source, evaluated_, held_out, held_out == 1 ? "is" : "are", held_out == 1 ? "that one" : "some of them"));
  }
  for (const auto& source : of_evaluation_) {
    const auto all = source.data->sequences(Split::training);
    lines.push_back(fmt::format("evaluations read {} of the {} sequences of {}{}", std::min(evaluated_, all), all, source.name,
                                evaluated_ > all ? ", some of them again" : ""));
  }
  return lines;
}

RunData::HeldOut RunData::held_out(std::span<const Trainer::HeldOut> micro_batches) const {
  const auto& sources = evaluated_sources();
  std::vector<Trainer::HeldOut> sums(sources.size());
  for (std::size_t i = 0; i < micro_batches.size(); ++i) {
    auto& sum = sums[i % sums.size()];
    sum.loss_sum += micro_batches[i].loss_sum;
    sum.targets += micro_batches[i].targets;
  }
  HeldOut found;
  const auto mean_of = [](const Trainer::HeldOut& sum) { return sum.targets > 0 ? std::optional(sum.mean()) : std::nullopt; };
  if (sources.size() == 1) {
    found.loss = mean_of(sums.front());
    return found;
  }
  Trainer::HeldOut all;
  for (std::size_t s = 0; s < sums.size(); ++s) {
    all.loss_sum += sources[s].share * sums[s].loss_sum;
    all.targets += sources[s].share * sums[s].targets;
    if (const auto mean = mean_of(sums[s])) found.of_sources[sources[s].name] = *mean;
  }
  found.loss = mean_of(all);
  return found;
}

std::map<std::string, double> RunData::epochs(std::uint64_t sequences) {
  std::map<std::string, double> epochs;
  if (sources_.size() == 1) return epochs;
  const auto taken = counted_.taken(sequences);
  for (std::size_t s = 0; s < taken.size(); ++s)
    epochs[sources_[s].name] =
        static_cast<double>(taken[s]) / static_cast<double>(sources_[s].data->sequences(Split::training));
  return epochs;
}

std::vector<std::string> RunData::warnings() const {
  std::vector<std::string> warnings;
  if (vocabulary_) warnings.push_back(vocabulary_->format.warning());
  for (const auto* const sources : {&sources_, &of_evaluation_})
    for (const auto& source : *sources) warnings.push_back(source.warning);
  std::erase(warnings, "");
  return warnings;
}

std::vector<std::uint64_t> RunData::checksums() const {
  std::vector<std::uint64_t> all;
  for (const auto& source : sources_) std::ranges::copy(source.checksums, std::back_inserter(all));
  return all;
}

void RunData::demand(Team& team, const std::function<std::string()>& kept) const {
  team.together([&] {
    if (!error_) return;
    try {
      std::rethrow_exception(error_);
    } catch (const Error& error) {
      throw Error(fmt::format("{}\n  {}", error.what(), kept()));
    }
  });
}

std::vector<std::string> warnings_of_data(const RunConfig& config) {
  if (config.data.format != DataFormat::conversations || config.data.files.empty()) return {};
  std::error_code error;
  const auto is_here = [&](const std::filesystem::path& file) { return std::filesystem::exists(file, error); };
  const bool names_tokenizer = !config.data.tokenizer.empty() || !config.run.init_from.empty();
  if (!names_tokenizer || !is_here(tokenizer_of(config)) || !std::ranges::all_of(data_files(config), is_here)) return {};
  return RunData(config).warnings();
}

}  // namespace terrace::cli
