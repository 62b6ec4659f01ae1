#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

Schedule layerwise(const OrderOptions& o) {
  Schedule s{.placement = one_stage_a_rank(o.ranks), .micro_batches = o.micro_batches, .tasks = {}};
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    auto& tasks = s.tasks.emplace_back();
    for (std::uint32_t j = 0; j < o.micro_batches; ++j) {
      tasks.push_back({Work::forward, rank, j});
      tasks.push_back({Work::backward, rank, j});
    }
  }
  return s;
}

}  // namespace terrace::pipeline
