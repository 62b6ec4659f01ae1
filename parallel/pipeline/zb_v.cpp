#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// The last stage is on the first rank, so the backward begins where the forward did. Needs the memory of 1F1B: each rank has
// two stages of half the size.
Schedule zb_v(const OrderOptions& o) {
  return best_list_schedule(v_shape(o.ranks), {.micro_batches = o.micro_batches, .cap = 2 * o.ranks});
}

}  // namespace terrace::pipeline
