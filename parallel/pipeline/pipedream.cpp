#include <algorithm>

#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// A forward reads the stage's newest weights, and its backward reads the same version. On rank r, forward i comes after
// backward i − (p − r).
Schedule pipedream(const OrderOptions& o) {
  auto s = one_f_one_b({.ranks = o.ranks, .micro_batches = o.micro_batches * o.updates});
  s.update_every = o.micro_batches;
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    auto& reads = s.reads.emplace_back();
    const auto ahead = o.ranks - 1 - rank;
    for (std::uint32_t m = 0; m < s.micro_batches; ++m) reads.push_back((std::max(m, ahead) - ahead) / s.update_every);
  }
  return s;
}

}  // namespace terrace::pipeline
