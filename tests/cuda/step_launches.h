// Counts the work of a planned step on a GPU: kernels, products, copies and events, over the plan's own walk. Layers and math
// are the real ones with the plan's sizes, but launches are only counted, and tensors have addresses without memory. So models
// of any size can be counted without a GPU and without its memory.
//
// Owner:   the caller. Threads: one; updates on the host are not run.
// Errors:  std::logic_error for what it cannot count: products with a bias, because a copy of it may be a kernel, and several
//          ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <terrace/parallel/plan/plan.h>

namespace terrace::test {

struct StepLaunches {
  std::map<std::string, std::uint64_t> kernels = {};  // by operation of core/math/math.h; "update" is an optimizer's
  // Bytes that the operations read and write in the device's memory, if each tensor moves once: an operation that adds to its
  // result also reads it, and of a table it reads only the rows. quantise() reads its tensor twice. What a kernel reads again,
  // and updates, are not counted.
  std::map<std::string, std::uint64_t> bytes = {};
  std::uint64_t products = 0;  // by cuBLASLt, a kernel each, or two where it splits the inner dimension
  std::uint64_t copies = 0;    // cudaMemcpyAsync: pieces of moves, tokens, squares
  std::uint64_t events = 0;    // cudaEventRecord
  // How often a stream's issuing thread must wait for the end of an operation of another lane.
  std::uint64_t waits = 0;
  [[nodiscard]] std::uint64_t launches() const;         // kernels and products
  [[nodiscard]] std::uint64_t pointwise_bytes() const;  // of all operations but products and attention
  friend bool operator==(const StepLaunches&, const StepLaunches&) = default;
};

// Counts a steady step. With deferred updates, it begins with the pending update.
StepLaunches count_launches(const Model& model, const Plan& plan, const std::string& optimizer, bool warpgroups);

}  // namespace terrace::test
