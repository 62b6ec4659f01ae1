// The sequences of a run's data, for the library's trainer: from a corpus of tokens or from conversations, and from one source
// or several, which are mixed by their weights (lm/data/mixed_sequences.h). An evaluation takes held-out sequences, or those of
// --eval-data.
//
// Owner:   the rank's training. Threads: the rank's.
// Errors:  the constructor throws what the corpus or the conversations throw. If a file has changed or cannot be read later,
//          all ranks commit before the run ends: read() keeps that error, and demand() throws it.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/data/mixed_sequences.h>
#include <terrace/examples/terrace/config/run_config.h>
#include <terrace/examples/terrace/data/data_sources.h>
#include <terrace/examples/terrace/ranks/team.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

// The chat template and the tokens that it names, as one text to compare. They come from files beside the tokenizer, and change
// the texts that are trained on. Empty: there is no template.
std::string describe_template(const RunConfig& config);
// Noon of --template-date, in seconds since 1970; empty if it is not given. Error(ErrorKind::refused) if it is not a date.
std::optional<std::int64_t> template_time(const RunConfig& config);

class RunData {
 public:
  explicit RunData(const RunConfig& config);
  RunData(RunData&&) = delete;

  [[nodiscard]] std::uint64_t sequences() const;               // to train on, if there is one source
  [[nodiscard]] std::uint64_t sequences_of_an_epoch() const {  // after which each source has been trained on at least once
    return mixed_.sequences(Split::training);
  }
  // For Trainer::Options::read.
  bool read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);
  // For Trainer::Options::documents; empty if each sequence is one document.
  [[nodiscard]] BatchReader::Number documents() const;
  // Lines for the user about the data, when the run begins.
  [[nodiscard]] std::vector<std::string> notes() const;
  [[nodiscard]] std::vector<std::string> warnings() const;
  // Checksums of all bytes of each file of conversations, which are read when the run begins; empty for other data.
  [[nodiscard]] std::vector<std::uint64_t> checksums() const;
  [[nodiscard]] const std::exception_ptr& error() const { return error_; }  // why this rank could not read its part
  // Throws the error of the first rank that has one. Called by all ranks, after the commit; `kept` says what they have kept.
  void demand(Team& team, const std::function<std::string()>& kept) const;

  // The result of an evaluation: the mean loss over its targets, with each source weighted, and, if there are several sources,
  // the mean of each. Without targets there is no loss.
  struct HeldOut {
    std::optional<double> loss;
    std::map<std::string, double> of_sources;
  };
  [[nodiscard]] HeldOut held_out(std::span<const Trainer::HeldOut> micro_batches) const;
  // How often each source has been trained on after the first `sequences` sequences of the run; empty if there is one source.
  [[nodiscard]] std::map<std::string, double> epochs(std::uint64_t sequences);

 private:
  struct Vocabulary {
    explicit Vocabulary(const RunConfig& config);
    lm::Tokenizer tokenizer;
    lm::ChatFormat format;
  };
  struct Source {
    std::string name;
    double share = 1;  // of all sequences of the run
    std::shared_ptr<lm::Sequences> data;
    std::string description, warning = {};
    std::vector<std::uint64_t> checksums = {};
  };
  using Sources = std::vector<Source>;
  static std::unique_ptr<Vocabulary> vocabulary_of(const RunConfig& config);
  static lm::MixedSequences::Sources data_of(const Sources& sources);
  static Source tokens_of(const RunConfig& config, const DataSource& source, std::size_t sources, bool holds_out);
  [[nodiscard]] Sources sources_of(const RunConfig& config, bool holds_out) const;
  [[nodiscard]] Source conversations_of(const RunConfig& config, const DataSource& source, bool holds_out) const;
  [[nodiscard]] const Sources& evaluated_sources() const { return of_evaluation_.empty() ? sources_ : of_evaluation_; }

  lm::Mixture counted_;                     // for epochs()
  std::unique_ptr<Vocabulary> vocabulary_;  // for conversations only
  Sources sources_, of_evaluation_;         // of_evaluation_: of --eval-data, all of which is evaluated on
  lm::MixedSequences mixed_;
  std::uint64_t evaluated_;  // sequences of each source that an evaluation takes
  bool has_documents_;
  std::exception_ptr error_;
};

// RunData::warnings() of conversations, which it reads as the start of a run does; empty for other data, and if a file or the
// tokenizer is not on this machine.
std::vector<std::string> warnings_of_data(const RunConfig& config);

}  // namespace terrace::cli
