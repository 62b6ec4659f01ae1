// What a planned step gives a GPU to do: kernels, products, copies and events, counted over the plan's own walk. Layers and
// math are the real ones, with the plan's sizes; launches are counted where they would be made, and tensors have addresses
// without memory. So a model of any size is counted, without a GPU and without its memory.
//
// Owner:   the caller. Threads: one; updates on the host are not run.
// Errors:  std::logic_error for what is not counted here: products with a bias, whose copy may be a kernel, and several ranks.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include <terrace/parallel/plan/plan.h>

namespace terrace::test {

struct StepLaunches {
  std::map<std::string, std::uint64_t> kernels = {};  // by operation of core/math/math.h; "update" is an optimizer's
  std::uint64_t products = 0;                         // by cuBLASLt, a kernel each, or two where it splits the inner dimension
  std::uint64_t copies = 0;                           // cudaMemcpyAsync: pieces of moves, tokens, squares
  std::uint64_t events = 0;                           // cudaEventRecord
  // How often the thread that issues for a stream must have seen another lane's operation end before it goes on.
  std::uint64_t waits = 0;
  [[nodiscard]] std::uint64_t launches() const;  // kernels and products
  friend bool operator==(const StepLaunches&, const StepLaunches&) = default;
};

// Of a steady step: one that begins with the pending update, where updates are deferred.
StepLaunches count_launches(const Model& model, const Plan& plan, const std::string& optimizer, bool warpgroups);

}  // namespace terrace::test
