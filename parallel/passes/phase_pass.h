// Cuts the actions of layers into the phases of their calls (phase.h).
#pragma once

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

// Applied after the passes that place other actions around layer actions, and before prefetches and offloads. A call with one
// phase does not change.
Program with_phases(const Program& program, const StepMap& map);

}  // namespace terrace::passes
