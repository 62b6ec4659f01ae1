#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// A rank first runs as many forwards as there are ranks behind it, then alternates one forward and one backward.
Schedule one_f_one_b(const OrderOptions& o) {
  Schedule s{.placement = one_stage_a_rank(o.ranks), .micro_batches = o.micro_batches, .tasks = {}};
  const auto m = o.micro_batches;
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    auto& tasks = s.tasks.emplace_back();
    const auto ahead = o.ranks - 1 - rank;
    for (std::uint32_t slot = 0; slot < m + ahead; ++slot) {
      if (slot < m) tasks.push_back({Work::forward, rank, slot});
      if (slot >= ahead) tasks.push_back({Work::backward, rank, slot - ahead});
    }
  }
  return s;
}

}  // namespace terrace::pipeline
