// Sequences to train on and held-out ones, as a trainer reads them: rows of tokens and targets, and the documents within them.
// They are numbered over all epochs.
//
// Owner:   the caller. Threads: one at a time. Errors: those of the files that they are read from.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/parallel/train/batch.h>

namespace terrace::lm {

class Sequences {
 public:
  virtual ~Sequences() = default;

  [[nodiscard]] virtual std::uint64_t sequences(Split split) const = 0;  // of an epoch
  // Tokens and targets of sequences, row by row. The target is −1 where nothing is learned.
  virtual void fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets) = 0;
  // Numbers documents as in parallel/train/documents.h. `tokens`: what fill() wrote.
  virtual void number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
                      std::span<std::int32_t> numbers) const = 0;

  // Both for Trainer::Options. The functions use this object.
  [[nodiscard]] BatchReader::Read reader() {
    return [this](Split split, auto numbers, auto tokens, auto targets) {
      fill(split, numbers, tokens, targets);
      return true;
    };
  }
  [[nodiscard]] BatchReader::Number numbers() const {
    return [this](Split split, auto numbers, auto tokens, auto to) { number(split, numbers, tokens, to); };
  }
};

}  // namespace terrace::lm
