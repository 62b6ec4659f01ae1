#include <terrace/parallel/flops.h>

namespace terrace {

Flops flops_of(const Model& model, const BatchShape& shape, const Program& step) {
  Flops flops;
  for (const auto& a : step.actions) {
    const double forward = a.op <= Op::backward ? model.layers[a.layer]->forward_flops(shape) : 0;
    if (a.op == Op::recompute) flops.with_recomputation += forward;
    if (a.op == Op::backward) flops.model += 3 * forward;
  }
  flops.with_recomputation += flops.model;
  return flops;
}

}  // namespace terrace
