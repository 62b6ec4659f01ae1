// Passes for a model that is split over tensor ranks (tensor_parallel.h). They change nothing in other programs.
#pragma once

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace {

// Combines the ranks' parts after each layer action that computes them, and with sequence parallelism assembles an action's
// input just before it. Applied after with_recompute().
Program with_tensor_exchanges(const Program& program, const StepMap& map);
// Unifies a layer's gradient just before its norm. Applied after the norms.
Program with_unions(const Program& program, const StepMap& map);

}  // namespace terrace
