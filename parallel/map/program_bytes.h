// The memory that a program needs, and the bytes that it moves.
//
// Pure. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/memory/residency.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/program.h>

namespace terrace::mapping {

// The most bytes that one action of the program uses in the tier; no smaller budget can be legal. `which` receives that action.
std::uint64_t largest_use(const StepMap& map, const Program& program, Tier tier, Action* which = nullptr);

// The traffic of a step if only offloaded activations move: out after the forward and back for the backward.
memory::Traffic offloaded_by(const StepMap& map, const Program& step);
// True if a step with traffic `moved` moved more than offloaded_by().
bool moves_state(const StepMap& map, const Program& step, const memory::Traffic& moved);

}  // namespace terrace::mapping
