// The sequences of a corpus of tokens (corpus.h).
//
// Owner:   the caller. Threads: one at a time. Errors: those of plan_sequences() and Corpus.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/sequences.h>

namespace terrace::lm {

class TokenSequences final : public Sequences {
 public:
  // `separator`: the token that ends a document; −1: each sequence is one document.
  TokenSequences(Corpus corpus, std::uint64_t seq_len, std::uint64_t seed, std::int32_t separator = -1, bool holds_out = true);

  [[nodiscard]] std::uint64_t sequences(Split split) const override;
  void fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) override;
  void number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
              std::span<std::int32_t> numbers) const override;

 private:
  Corpus corpus_;
  SequencePlan plan_;
  std::uint64_t seed_;
  std::int32_t separator_;
};

}  // namespace terrace::lm
