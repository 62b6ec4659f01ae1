// Passes: pure functions that rewrite a program. Applied in this order: recompute, norms, updates, place.
#pragma once

#include <cstdint>

#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// A recomputation before every backward of a layer that saves tensors.
Program with_recompute(const Program& program, const StepMap& map);
// After a layer's last backward: its gradient's share of the global norm (and the sum of a tied tensor's uses).
Program with_norms(Program program);
// in_backward: a layer's chunks are updated right after its norm. before_use: the step starts with the update that the step
// before has left pending, each layer's chunks just before the layer's first use; none: the first step of such a run.
enum class Updates : std::uint8_t { none, in_backward, before_use };
Program with_updates(Program program, const StepMap& map, Updates updates);
// Prefetches `depth` layer actions ahead (a layer's chunk updates count with the action beside them); never before the last
// action that writes the chunk, never twice between two uses. 0: none, everything is fetched when it is needed.
Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth);

}  // namespace terrace
