// Proves a training program before it runs: every use finds its content, every gradient is complete before its update, every
// layer computes every micro-batch exactly once forward and once backward. Budgets are proven by plan() (plan.h), which walks
// the program against residency and so makes the same decisions as the run.
//
// Pure. Errors: Error(ErrorKind::refused) with the first wrong action, its position and what it lacks.
#pragma once

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/passes/passes.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

// Checks one step. `updates` says which updates the program must contain.
void check_step(const Program& program, const StepMap& map, const UpdateTimes& updates);

}  // namespace terrace::passes
