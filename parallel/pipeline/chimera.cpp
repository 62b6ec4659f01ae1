#include <fmt/format.h>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// Each direction fills the other's bubble.
Schedule chimera(const OrderOptions& o) {
  if (o.ranks % 2 != 0)
    throw RefusedSetting("pp", fmt::format("`schedule` chimera needs an even number of ranks, not {}\n  give `pp` {}", o.ranks,
                                           o.ranks == 1 ? "2" : fmt::format("{} or {}", o.ranks - 1, o.ranks + 1)));
  const StageCosts slots{.forward = {1}, .input = {0.5}, .weight = {0.5}};  // of equal length, as in the paper
  return best_list_schedule(both_directions(o.ranks),
                            {.micro_batches = o.micro_batches, .cap = o.ranks, .halves = false, .costs = slots});
}

}  // namespace terrace::pipeline
