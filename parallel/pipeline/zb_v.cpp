#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {

// The last stage is on the first rank, so the backward begins where the forward did, with 1F1B's memory: two half stages for
// each rank.
Schedule zb_v(const OrderOptions& o) {
  return best_list_schedule(v_shape(o.ranks), {.micro_batches = o.micro_batches, .cap = 2 * o.ranks});
}

}  // namespace terrace::pipeline
