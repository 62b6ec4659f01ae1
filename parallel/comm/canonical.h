// Canonical reduction: the sum of a step's contributions does not depend on the number of data ranks.
//
// Global micro-batch j is computed by data rank j mod d. After every round of d micro-batches each owner folds the round's
// contributions to its block onto what it has, in ascending rank order, which is ascending j:
//
//   (((c_0 + c_1) + c_2) + …) + c_{m−1}       exactly the sum that one rank makes, for every d that divides m
//
// Sums must round equally for every d, so contributions are fp32 or fp64, or bf16 onto an fp32 accumulator.
//
// Owner, threads, errors: as the communicator.
#pragma once

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

class CanonicalFold {
 public:
  // Throws Error(Exit::usage) if the sum would depend on d: d does not divide the micro-batches, or the accumulator is bf16.
  CanonicalFold(Communicator& data, int micro_batches, DType contribution, DType accumulator);

  [[nodiscard]] int rounds() const { return micro_batches_ / data_.size(); }
  [[nodiscard]] int micro_batch(int round) const { return round * data_.size() + data_.rank(); }  // this rank's
  // contribution: this rank's gradient of micro_batch(round), whole. mine: this rank's block of the accumulator, overwritten
  // in round 0.
  void add(Stream& stream, int round, ConstBytes contribution, Bytes mine);

 private:
  Communicator& data_;
  const int micro_batches_;
  const DType contribution_, accumulator_;
};

}  // namespace terrace
