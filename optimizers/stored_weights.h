// A chunk's weights for fill, hash and export: plain numbers, whatever the recipe's formats.
//
// Owner:   bytes belong to the caller's leases. Threads: any, one at a time on one chunk.
#pragma once

#include <cstdint>
#include <functional>

#include <terrace/core/math/tensor.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::rules {

struct StoredWeights {
  Stored parameter, master;
  bool widened = false;  // a 16-bit weight without a master although the recipe has one: callers see it as fp32
};

// Calls `use` with elements [first, first + count) of the chunk, in ascending pieces; `offset` counts from `first` on. The
// dtype is Recipe::weight_dtype(). write_weights() stores the numbers that `use` writes into the view.
using UseWeights = std::function<void(std::int64_t offset, TensorView range)>;
void write_weights(const StoredWeights& weights, std::int64_t first, std::int64_t count, const UseWeights& use);
void read_weights(const StoredWeights& weights, std::int64_t first, std::int64_t count, const UseWeights& use);

}  // namespace terrace::rules
