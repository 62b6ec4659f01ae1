// What the ranks of a run agree on before and after they plan, so that their programs match.
//
//   agree(ranks, request, profile);
//   const auto first = plan(model, request, profile);
//   demand_same_program(ranks, first, mesh_of(model, request));
//   Engine engine(model, for_rank(first, model, request, profile), …);
//
// Owner:   the caller. Threads: the rank's; all ranks make the same calls.
// Errors:  those of the communicator. demand_same_program() throws Error(Exit::usage), on all ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/comm/agree.h>
#include <terrace/parallel/plan/plan.h>

namespace terrace {

// All ranks take the smallest budgets of all, the first rank's rates and stages, and the machines of the communicator.
void agree(Agreement& ranks, PlanRequest& request, MachineProfile& profile);

// The hash of the steady step's program, before for_rank().
std::uint64_t steady_hash(const Plan& plan);
// Two ranks of one stage whose hashes differ: their first collectives would not match. Empty if all match.
std::optional<std::pair<std::uint32_t, std::uint32_t>> different_programs(Agreement& ranks, std::uint64_t steady_hash,
                                                                          const Mesh& mesh);
void demand_same_program(Agreement& ranks, const Plan& plan, const Mesh& mesh);

}  // namespace terrace
