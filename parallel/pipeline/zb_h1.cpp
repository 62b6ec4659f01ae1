#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// 1F1B with the backward in halves. While a rank holds fewer activations than rank 0 does in 1F1B, weight halves wait: forwards
// and input halves go first, because other ranks wait for them.
Schedule zb_h1(const OrderOptions& o) {
  Schedule s{.placement = one_stage_a_rank(o.ranks), .micro_batches = o.micro_batches, .tasks = {}};
  const auto m = o.micro_batches;
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    auto& tasks = s.tasks.emplace_back();
    const auto ahead = o.ranks - 1 - rank;
    std::uint32_t live = 0, weights = 0;
    const auto weight = [&] {
      tasks.push_back({Work::weight, rank, weights++});
      --live;
    };
    for (std::uint32_t slot = 0; slot < m + ahead; ++slot) {
      if (slot < m) {
        if (live == o.ranks) weight();
        tasks.push_back({Work::forward, rank, slot});
        ++live;
      }
      if (slot < ahead) continue;
      tasks.push_back({Work::input, rank, slot - ahead});
      // No forward is left. Input halves arrive one at a time, so weight halves fill the time between them.
      if (slot + 1 >= m && slot + 1 < m + ahead) weight();
    }
    while (weights < m) weight();
  }
  return s;
}

}  // namespace terrace::pipeline
