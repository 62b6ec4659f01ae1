// What a program needs and moves as a whole.
//
// Pure. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/memory/residency.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// The largest sum of bytes that one action uses in a tier: the smallest budget that could ever be legal there. `which` receives
// that action.
std::uint64_t largest_use(const StepMap& map, const Program& program, Tier tier, Action* which = nullptr);

// The traffic of the activations that the layers of a step offload and read again, if the device has room for all the rest.
Traffic offloaded_by(const StepMap& map, const Program& step);
// Whether a step with traffic `moved` moved more than that.
bool moves_state(const StepMap& map, const Program& step, const Traffic& moved);

}  // namespace terrace
