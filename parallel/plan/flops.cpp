#include <terrace/parallel/plan/flops.h>

#include <vector>

namespace terrace::planning {
namespace {

// The FLOPs of each phase of a layer's forward.
std::vector<double> forward_phases(const Layer& layer, const BatchShape& shape) {
  std::vector<double> all;
  for (const auto& phase : layer.described(LayerCall::forward, shape).phases())
    all.push_back(phase.undivided ? layer.facts(shape).forward_flops : phase.flops);
  return all;
}

}  // namespace

Flops flops_of(const Model& model, const BatchShape& shape, const Program& step) {
  Flops flops;
  std::vector<std::vector<double>> recomputed(model.layers.size());
  for (const auto& a : step.actions) {
    if (a.op == Op::recompute) {
      auto& phases = recomputed[a.layer];
      if (phases.empty()) phases = forward_phases(*model.layers[a.layer], shape);
      flops.with_recomputation += phases[a.phase];
    }
    if (a.op == Op::backward && a.phase == 0) flops.model += 3 * model.layers[a.layer]->facts(shape).forward_flops;
  }
  flops.with_recomputation += flops.model;
  return flops;
}

}  // namespace terrace::planning
