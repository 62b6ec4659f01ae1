// What the ranks of a run agree on before and after they plan, so that their programs match.
//
//   Engine engine(model, plan_together(ranks, model, request), …);
//
// Owner:   the caller. Threads: the rank's; all ranks make the same calls.
// Errors:  those of the communicator. demand_same_program() throws Error(ErrorKind::refused), on all ranks; plan_together()
//          also throws Error(ErrorKind::does_not_fit).
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

// All of it: agrees, plans, compares the programs, and returns this rank's plan. `request` receives what was agreed on.
Plan plan_together(Agreement& ranks, const Model& model, PlanRequest& request, MachineProfile profile = {});

}  // namespace terrace
