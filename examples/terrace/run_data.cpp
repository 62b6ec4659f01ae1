#include <terrace/examples/terrace/run_data.h>

#include <fmt/format.h>

#include <ctime>
#include <vector>

#include <terrace/core/printable.h>
#include <terrace/examples/terrace/run_tokenizer.h>
#include <terrace/offload/chunk_store.h>
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

RunData::Tokens::Tokens(const RunConfig& config)
    : corpus(lm::Corpus::open(config.data, {}, lm::token_format(config.data_format, config.vocab))),
      sequences(lm::plan_sequences(corpus.tokens(), static_cast<std::uint64_t>(config.seq_len))) {
  // The run only keeps it. A mistake must not show at the end.
  if (!config.tokenizer.empty()) static_cast<void>(read_tokenizer(config.tokenizer, config));
}

RunData::Conversations::Conversations(const RunConfig& config)
    : tokenizer(read_tokenizer(tokenizer_of(config), config)),
      format(tokenizer, lm::read_tokenizer_config(tokenizer_of(config).parent_path()), template_time(config)),
      data(config.data, format, static_cast<std::uint64_t>(config.seq_len), config.seed) {}

RunData::RunData(const RunConfig& config)
    : seed_(config.seed), separator_(static_cast<std::int32_t>(config.document_separator)) {
  if (config.data_format == kConversations)
    conversations_ = std::make_unique<Conversations>(config);
  else
    tokens_ = std::make_unique<Tokens>(config);
}

void RunData::fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) {
  if (conversations_) return conversations_->data.fill(split == Split::held_out, sequences, tokens, targets);
  const auto& plan = tokens_->sequences;
  std::vector<std::uint64_t> starts;
  for (const auto sequence : sequences)
    starts.push_back(split == Split::training ? plan.sequence_start(seed_, sequence)
                                              : plan.evaluation_start(sequence % plan.evaluation_sequences));
  tokens_->corpus.fill(starts, plan.seq_len, tokens, targets);
  // Every separator ends a document, also where a sequence ends with it.
  if (separator_ >= 0) end_targets_at(tokens, separator_, targets);
}

bool RunData::read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) try {
  fill(split, sequences, tokens, targets);
  return error_ == nullptr;
} catch (const Error&) {
  error_ = std::current_exception();
  return false;
}

BatchReader::Number RunData::documents() const {
  if (conversations_)
    return [this](Split split, auto sequences, auto, auto numbers) {
      conversations_->data.number(split == Split::held_out, sequences, numbers);
    };
  if (separator_ < 0) return {};
  return [separator = separator_](Split, auto sequences, auto tokens, auto numbers) {
    number_documents(tokens, tokens.size() / sequences.size(), separator, numbers);
  };
}

std::string RunData::note() const {
  if (!conversations_) return {};
  const auto& data = conversations_->data;
  auto text = fmt::format("{} conversations: {} sequences to train on, {} held out", data.conversations(),
                          data.sequences(false), data.sequences(true));
  if (data.documents() > data.conversations())
    text +=
        fmt::format("; as the chat template writes earlier answers in another way, they are {} documents", data.documents());
  if (data.cut() > 0) text += fmt::format("; {} are longer than --seq-len and are cut", data.cut());
  return text;
}

std::string RunData::warning() const { return conversations_ ? conversations_->format.warning() : std::string(); }

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

}  // namespace terrace::cli
