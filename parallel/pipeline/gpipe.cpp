#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

Schedule gpipe(const OrderOptions& o) {
  Schedule s{.placement = one_stage_a_rank(o.ranks), .micro_batches = o.micro_batches, .tasks = {}};
  for (std::uint32_t rank = 0; rank < o.ranks; ++rank) {
    auto& tasks = s.tasks.emplace_back();
    for (const auto work : {Work::forward, Work::backward})
      for (std::uint32_t j = 0; j < o.micro_batches; ++j) tasks.push_back({work, rank, j});
  }
  return s;
}

}  // namespace terrace::pipeline
