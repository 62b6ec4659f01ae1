#include <terrace/examples/terrace/data/run_data.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iterator>
#include <utility>

#include <terrace/core/base/printable.h>
#include <terrace/examples/lm/chat/conversation_data.h>
#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/terrace/data/conversation_cache.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/data/run_tokenizer.h>
#include <terrace/examples/terrace/data/token_cache.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/parallel/train/documents.h>

namespace terrace::cli {

std::string describe_template(const RunConfig& config) {
  const auto named = lm::read_tokenizer_config(tokenizer_of(config).parent_path());
  if (!named.chat_template) return {};
  auto all = *named.chat_template;
  for (const auto& [key, token] : named.tokens) all += '\0' + key + '\0' + token;
  return fmt::format("{} bytes with checksum {:016x}", named.chat_template->size(), checksum_of(std::as_bytes(std::span(all))));
}

std::optional<std::int64_t> template_time(const RunConfig& config) {
  if (config.template_date.empty()) return {};
  std::tm day{};
  const auto* const end = ::strptime(config.template_date.c_str(), "%Y-%m-%d", &day);
  day.tm_hour = 12;
  day.tm_isdst = -1;
  const auto wanted = day;
  const auto time = end != nullptr && *end == '\0' ? std::mktime(&day) : std::time_t{-1};
  if (time == std::time_t{-1} || day.tm_mday != wanted.tm_mday)
    throw Error(fmt::format("--template-date {} is no day\n  write it as 2026-11-26", printable(config.template_date)),
                Exit::usage);
  return time;
}

// The sequences of one source.
class RunData::Source {
 public:
  Source(std::string name, double share) : name_(std::move(name)), share_(share) {}
  virtual ~Source() = default;
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] double share() const { return share_; }  // of all sequences of the run
  [[nodiscard]] virtual std::uint64_t sequences(Split split) const = 0;
  // Fills in one sequence. The numbers of sequences go on through all epochs.
  virtual void fill(Split split, std::uint64_t sequence, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) = 0;
  virtual void number(Split split, std::uint64_t sequence, std::span<const std::int32_t> tokens,
                      std::span<std::int32_t> numbers) const = 0;
  [[nodiscard]] virtual std::string describe() const = 0;
  [[nodiscard]] virtual std::string warning() const { return {}; }
  [[nodiscard]] virtual std::vector<std::uint64_t> checksums() const { return {}; }

 private:
  std::string name_;
  double share_;
};

class RunData::Tokens final : public Source {
 public:
  Tokens(const RunConfig& config, const DataSource& source, double share, std::size_t sources, bool holds_out)
      : Source(source.name, share),
        corpus_(lm::Corpus::open(source.files, windows_of(sources), format_of_tokens(config))),
        plan_(lm::plan_sequences(corpus_.tokens(), static_cast<std::uint64_t>(config.seq_len), holds_out)),
        seed_(config.seed),
        separator_(static_cast<std::int32_t>(config.document_separator)) {}

  [[nodiscard]] std::uint64_t sequences(Split split) const override {
    return split == Split::training ? plan_.training_sequences : plan_.evaluation_sequences;
  }
  void fill(Split split, std::uint64_t sequence, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) override {
    const auto start = split == Split::training ? plan_.sequence_start(seed_, sequence)
                                                : plan_.evaluation_start(sequence % plan_.evaluation_sequences);
    corpus_.fill({&start, 1}, plan_.seq_len, tokens, targets);
    // Every separator ends a document, even if a sequence ends with it.
    if (separator_ >= 0) end_targets_at(tokens, separator_, targets);
  }
  void number(Split, std::uint64_t, std::span<const std::int32_t> tokens, std::span<std::int32_t> numbers) const override {
    number_documents(tokens, tokens.size(), separator_, numbers);
  }
  [[nodiscard]] std::string describe() const override {
    return fmt::format("{} sequences to train on, {} held out", plan_.training_sequences, plan_.evaluation_sequences);
  }

 private:
  // The windows of all sources together take as many bytes as those of one corpus.
  static lm::CorpusWindows windows_of(std::size_t sources) {
    constexpr std::size_t kLeast = 16 << 10;
    lm::CorpusWindows windows;
    windows.bytes = std::max(kLeast, windows.bytes / sources);
    windows.checked = std::max<std::size_t>(1, windows.checked / sources);
    return windows;
  }

  lm::Corpus corpus_;
  lm::SequencePlan plan_;
  std::uint64_t seed_;
  std::int32_t separator_;
};

class RunData::Conversations final : public Source {
 public:
  Conversations(const RunConfig& config, const DataSource& source, double share, const Vocabulary& vocabulary, bool holds_out)
      : Source(source.name, share),
        seq_len_(config.seq_len),
        data_(files_of(config, source, vocabulary), config.seed, holds_out) {}

  [[nodiscard]] std::uint64_t sequences(Split split) const override { return data_.sequences(split); }
  void fill(Split split, std::uint64_t sequence, std::span<std::int32_t> tokens, std::span<std::int32_t> targets) override {
    data_.fill(split, {&sequence, 1}, tokens, targets);
  }
  void number(Split split, std::uint64_t sequence, std::span<const std::int32_t>,
              std::span<std::int32_t> numbers) const override {
    data_.number(split, {&sequence, 1}, numbers);
  }
  [[nodiscard]] std::string describe() const override {
    auto text = fmt::format("{} conversations: {} sequences to train on, {} held out", data_.conversations(),
                            data_.sequences(Split::training), data_.sequences(Split::held_out));
    if (data_.documents() > data_.conversations())
      text +=
          fmt::format("; as the chat template writes earlier answers in another way, they are {} documents", data_.documents());
    if (data_.skipped() > 0)
      text += fmt::format("; {} lines that are none were skipped, the first: {}", data_.skipped(), data_.first_skipped());
    if (data_.cut() > 0) text += fmt::format("; {} are longer than --seq-len and are cut", data_.cut());
    if (data_.untaught() > 0)
      text += fmt::format("; {} have no answer within --seq-len, so nothing is learned from them", data_.untaught());
    if (data_.sequences(Split::held_out) > 0 && !data_.learns_held_out())
      text += "; none of the held-out ones has an answer there, so there is no held-out loss";
    return text;
  }
  [[nodiscard]] std::string warning() const override {
    if (data_.share_cut_off() < 0.5 && 2 * data_.untaught() < data_.documents()) return {};
    return fmt::format(
        "--seq-len {} cuts off {:.0f} % of the tokens of the answers in {}, and leaves nothing to learn of {} of {} "
        "conversations; raise --seq-len, or shorten what stands before the answers",
        seq_len_, 100 * data_.share_cut_off(), name(), data_.untaught(), data_.documents());
  }
  [[nodiscard]] std::vector<std::uint64_t> checksums() const override { return data_.checksums(); }

 private:
  static std::vector<lm::EncodedConversations> files_of(const RunConfig& config, const DataSource& source,
                                                        const Vocabulary& vocabulary) {
    std::vector<lm::EncodedConversations> files;
    for (const auto& file : source.files)
      files.push_back(encoded_conversations(file, config, vocabulary.tokenizer, vocabulary.format));
    return files;
  }

  std::int64_t seq_len_;
  lm::ConversationData data_;
};

namespace {

lm::Mixture mixture_of(const RunConfig& config) {
  std::vector<std::uint64_t> weights;
  for (const auto& source : data_sources(config)) weights.push_back(source.weight);
  return {weights, config.seed};
}

}  // namespace

RunData::Vocabulary::Vocabulary(const RunConfig& config)
    : tokenizer(read_tokenizer(tokenizer_of(config), config)),
      format(tokenizer, lm::read_tokenizer_config(tokenizer_of(config).parent_path()), template_time(config)) {}

RunData::RunData(const RunConfig& config)
    : mixture_(mixture_of(config)),
      counted_(mixture_),
      rows_(static_cast<std::uint64_t>(config.batch_size)),
      evaluated_(static_cast<std::uint64_t>(config.eval_batches) * rows_),
      has_documents_(config.data_format == kConversations || config.document_separator >= 0) {
  const bool conversations = config.data_format == kConversations;
  if (conversations)
    vocabulary_ = std::make_unique<Vocabulary>(config);
  else if (!config.tokenizer.empty())  // the run only keeps it, but a wrong one must be found now
    static_cast<void>(read_tokenizer(config.tokenizer, config));
  sources_ = sources_of(config, holds_out(config));
  if (!config.eval_data.empty()) of_evaluation_ = sources_of(of_evaluation(config), false);
}

RunData::Sources RunData::sources_of(const RunConfig& config, bool holds_out) const {
  Sources all;
  const auto sources = data_sources(config);
  const auto mixture = mixture_of(config);
  for (const auto& source : sources) try {
      const auto share = mixture.share(all.size());
      if (vocabulary_)
        all.push_back(std::make_unique<Conversations>(config, source, share, *vocabulary_, holds_out));
      else
        all.push_back(std::make_unique<Tokens>(config, source, share, sources.size(), holds_out));
    } catch (const Error& error) {
      if (sources.size() == 1) throw;
      throw Error(fmt::format("source {} of the data: {}", source.name, error.what()), error.exit());
    }
  return all;
}

RunData::~RunData() = default;

RunData::Place RunData::place_of(lm::Mixture& mixture, Split split, std::uint64_t sequence) const {
  if (split == Split::training) {
    const auto place = mixture.at(sequence);
    return {sources_[place.source].get(), split, place.sequence};
  }
  const auto& sources = evaluated_sources();
  const auto micro_batch = sequence / rows_, all = static_cast<std::uint64_t>(sources.size());
  auto* const source = sources[micro_batch % all].get();
  const auto of_source = micro_batch / all * rows_ + sequence % rows_;
  if (of_evaluation_.empty()) return {source, split, of_source};
  return {source, Split::training, of_source % source->sequences(Split::training)};  // the same sequences each time
}

std::uint64_t RunData::sequences() const { return sources_.front()->sequences(Split::training); }

// A source with a share s of all sequences is trained on once after n / s of them.
std::uint64_t RunData::sequences_of_an_epoch() const {
  double all = 0;
  for (const auto& source : sources_)
    all = std::max(all, static_cast<double>(source->sequences(Split::training)) / source->share());
  return static_cast<std::uint64_t>(std::ceil(all));
}

bool RunData::read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) try {
  const auto each = sequences.empty() ? 0 : tokens.size() / sequences.size();
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto [source, own, sequence] = place_of(mixture_, split, sequences[row]);
    source->fill(own, sequence, tokens.subspan(row * each, each), targets.subspan(row * each, each));
  }
  return error_ == nullptr;
} catch (const Error&) {
  error_ = std::current_exception();
  return false;
}

BatchReader::Number RunData::documents() {
  if (!has_documents_) return {};
  return [this, mixture = mixture_](Split split, auto sequences, auto tokens, auto numbers) mutable {
    const auto each = sequences.empty() ? 0 : tokens.size() / sequences.size();
    for (std::size_t row = 0; row < sequences.size(); ++row) {
      const auto [source, own, sequence] = place_of(mixture, split, sequences[row]);
      source->number(own, sequence, tokens.subspan(row * each, each), numbers.subspan(row * each, each));
    }
  };
}

std::vector<std::string> RunData::notes() const {
  std::vector<std::string> lines;
  const bool several = sources_.size() > 1;
  for (const auto& source : sources_) {
    const auto of_source = several ? fmt::format("data {}: ", source->name()) : "";
    if (several)
      lines.push_back(fmt::format("{}{:.4g} % of the sequences; {}", of_source, 100 * source->share(), source->describe()));
    else if (vocabulary_)
      lines.push_back(source->describe());
    if (!of_evaluation_.empty()) continue;
    if (const auto held_out = source->sequences(Split::held_out); held_out > 0 && evaluated_ > held_out)
      lines.push_back(fmt::format(
          "{}an evaluation reads {} sequences (--eval-batches × --batch-size), and {} {} held out, so "
          "it reads {} again",
          of_source, evaluated_, held_out, held_out == 1 ? "is" : "are", held_out == 1 ? "that one" : "some of them"));
  }
  for (const auto& source : of_evaluation_) {
    const auto all = source->sequences(Split::training);
    lines.push_back(fmt::format("evaluations read {} of the {} sequences of {}{}", std::min(evaluated_, all), all,
                                source->name(), evaluated_ > all ? ", some of them again" : ""));
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
    all.loss_sum += sources[s]->share() * sums[s].loss_sum;
    all.targets += sources[s]->share() * sums[s].targets;
    if (const auto mean = mean_of(sums[s])) found.of_sources[sources[s]->name()] = *mean;
  }
  found.loss = mean_of(all);
  return found;
}

std::map<std::string, double> RunData::epochs(std::uint64_t sequences) {
  std::map<std::string, double> epochs;
  if (sources_.size() == 1) return epochs;
  const auto taken = counted_.taken(sequences);
  for (std::size_t s = 0; s < taken.size(); ++s)
    epochs[sources_[s]->name()] = static_cast<double>(taken[s]) / static_cast<double>(sources_[s]->sequences(Split::training));
  return epochs;
}

std::vector<std::string> RunData::warnings() const {
  std::vector<std::string> warnings;
  if (vocabulary_) warnings.push_back(vocabulary_->format.warning());
  for (const auto* const sources : {&sources_, &of_evaluation_})
    for (const auto& source : *sources) warnings.push_back(source->warning());
  std::erase(warnings, "");
  return warnings;
}

std::vector<std::uint64_t> RunData::checksums() const {
  std::vector<std::uint64_t> all;
  for (const auto& source : sources_) std::ranges::copy(source->checksums(), std::back_inserter(all));
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
  if (config.data_format != kConversations || config.data.empty()) return {};
  std::error_code error;
  const auto is_here = [&](const std::filesystem::path& file) { return std::filesystem::exists(file, error); };
  const bool names_tokenizer = !config.tokenizer.empty() || !config.init_from.empty();
  if (!names_tokenizer || !is_here(tokenizer_of(config)) || !std::ranges::all_of(data_files(config), is_here)) return {};
  return RunData(config).warnings();
}

}  // namespace terrace::cli
