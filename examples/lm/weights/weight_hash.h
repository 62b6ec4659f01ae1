// One number for all weights, to compare runs bit by bit: XXH64 (seed 0) over the little-endian bytes of all tensors in
// declared order. If tensors are split over ranks, each rank's part is hashed, then the sequence of these hashes.
//
// Owner:   the caller.
// Threads: one at a time.
// Errors:  std::bad_alloc only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <terrace/core/math/dtype.h>

namespace terrace::lm {

class WeightHash {
 public:
  WeightHash();
  ~WeightHash();
  WeightHash(const WeightHash&) = delete;
  WeightHash& operator=(const WeightHash&) = delete;

  // Adds the next range of elements; how a tensor is cut into ranges does not change the hash.
  void add(std::span<const float> range);
  void add(std::span<const double> range);
  void add(std::span<const bf16> range);

  [[nodiscard]] std::uint64_t value() const;  // of all elements added so far
  [[nodiscard]] std::string hex() const;      // sixteen digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};
// For one hash, its own digits; for several, the hash of their values. Sixteen digits.
std::string combined(std::span<const WeightHash> hashes);

}  // namespace terrace::lm
