// Proves a training program before it runs: every use finds its content, every gradient is complete before its update, every
// layer computes every micro-batch exactly once each way. Budgets are proven by walking the program against residency
// (plan.h), which decides exactly what the run will do.
//
// Pure. Errors: Error(Exit::usage) that names the first action at fault, its position, and what it lacks.
#pragma once

#include <terrace/parallel/passes.h>
#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// One step. `updates` says which updates the program must hold.
void check_step(const Program& program, const StepMap& map, Updates updates);

}  // namespace terrace
