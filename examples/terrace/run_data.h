// The sequences of a run's data, for the library's trainer: of a corpus of tokens, or of conversations.
//
// Owner:   the rank's training. Threads: the rank's.
// Errors:  of the constructor, what the corpus or the conversations throw. If a file has changed or cannot be read later, all
//          ranks commit before the run ends: read() keeps that error for demand().
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <terrace/examples/lm/chat/conversation_data.h>
#include <terrace/examples/lm/corpus.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/examples/terrace/team.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

// What the files beside the tokenizer change in the texts, as a text to compare: the chat template and the tokens that it
// names. Empty: there is no template.
std::string describe_template(const RunConfig& config);
// Noon of --template-date, in seconds since 1970; nothing if there is none. Error(Exit::usage) if it is no day.
std::optional<std::int64_t> template_time(const RunConfig& config);

class RunData {
 public:
  explicit RunData(const RunConfig& config);

  // As Trainer::Options has it.
  bool read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);
  // As Trainer::Options::documents has it; empty if each sequence is one document.
  [[nodiscard]] BatchReader::Number documents() const;
  // What the user should know of the data when the run begins; empty: nothing.
  [[nodiscard]] std::string note() const;
  [[nodiscard]] std::string warning() const;
  [[nodiscard]] const std::exception_ptr& error() const { return error_; }  // why this rank could not read its part
  // Throws the error of the first rank that has one. Called by all ranks, after the commit; `kept` says what they have then.
  void demand(Team& team, const std::function<std::string()>& kept) const;

 private:
  struct Tokens {
    explicit Tokens(const RunConfig& config);
    lm::Corpus corpus;
    lm::SequencePlan sequences;
  };
  struct Conversations {
    explicit Conversations(const RunConfig& config);
    lm::Tokenizer tokenizer;
    lm::ChatFormat format;
    lm::ConversationData data;
  };
  void fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);

  // One of them is there.
  std::unique_ptr<Tokens> tokens_;
  std::unique_ptr<Conversations> conversations_;
  std::uint64_t seed_;
  std::int32_t separator_;
  std::exception_ptr error_;
};

}  // namespace terrace::cli
