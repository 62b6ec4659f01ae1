// The sequences of a run's corpus, for the library's trainer.
//
// Owner:   the rank's training. Threads: the rank's.
// Errors:  of the constructor, what the corpus throws. If a file has changed or cannot be read later, all ranks commit before
//          the run ends: read() keeps that error for demand().
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>

#include <terrace/examples/lm/corpus.h>
#include <terrace/examples/terrace/run_config.h>
#include <terrace/examples/terrace/team.h>
#include <terrace/parallel/train/trainer.h>

namespace terrace::cli {

class RunData {
 public:
  explicit RunData(const RunConfig& config);

  // As Trainer::Options has it.
  bool read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);
  [[nodiscard]] const std::exception_ptr& error() const { return error_; }  // why this rank could not read its part
  // Throws the error of the first rank that has one. Called by all ranks, after the commit; `kept` says what they have then.
  void demand(Team& team, const std::function<std::string()>& kept) const;

 private:
  lm::Corpus corpus_;
  lm::SequencePlan sequences_;
  std::uint64_t seed_;
  std::exception_ptr error_;
};

}  // namespace terrace::cli
