// A rank's part of a batch, as the trainer's caller reads it: its slice of each sequence, the documents, and the number of
// targets that count.
//
// Owner:   a trainer. Threads: the rank thread. Errors: those of the functions that read.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <terrace/parallel/mesh/context_parallel.h>

namespace terrace {

enum class Split : std::uint8_t { training, held_out };

struct Batch {
  std::vector<std::int32_t> tokens, targets;  // of this rank's slice of each sequence
  std::vector<std::int32_t> document_begins;  // of all positions of each sequence; empty: each is one document
  std::vector<double> counted;                // [micro-batch]: targets at all positions
  std::vector<double> real;                   // [micro-batch]: positions that are not padding
};

class BatchReader {
 public:
  using Read = std::function<bool(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                                  std::span<std::int32_t> targets)>;
  using Number = std::function<void(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t> tokens,
                                    std::span<std::int32_t> numbers)>;
  // `positions`: of a sequence on this rank. `rows`: sequences in a micro-batch. `number`: Trainer::Options::documents; if it
  // is empty, every position counts.
  BatchReader(Read read, Number number, const ContextParallel& context, std::size_t positions, std::size_t rows)
      : read_(std::move(read)), number_(std::move(number)), context_(context), positions_(positions), rows_(rows) {}

  // False: the sequences cannot be read.
  bool operator()(Split split, std::span<const std::uint64_t> sequences, Batch& to) const;
  [[nodiscard]] bool has_documents() const { return static_cast<bool>(number_); }

 private:
  [[nodiscard]] std::size_t whole() const { return positions_ * context_.ranks; }  // positions of a sequence
  void slice(std::span<const std::int32_t> whole, std::span<std::int32_t> to) const;
  // For each micro-batch: the number of its targets that are at least `least`.
  [[nodiscard]] std::vector<double> count(std::span<const std::int32_t> targets, std::int32_t least) const;

  const Read read_;
  const Number number_;
  const ContextParallel context_;
  const std::size_t positions_, rows_;
};

}  // namespace terrace
