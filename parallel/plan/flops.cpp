#include <terrace/parallel/plan/flops.h>

namespace terrace {

Flops flops_of(const Model& model, const BatchShape& shape, const Program& step) {
  Flops flops;
  for (const auto& a : step.actions) {
    if (a.op == Op::recompute) {
      const auto phases = model.layers[a.layer]->phases(LayerCall::forward, shape);
      flops.with_recomputation += phases.empty() ? model.layers[a.layer]->forward_flops(shape) : phases[a.phase].flops;
    }
    if (a.op == Op::backward && a.phase == 0) flops.model += 3 * model.layers[a.layer]->forward_flops(shape);
  }
  flops.with_recomputation += flops.model;
  return flops;
}

}  // namespace terrace
