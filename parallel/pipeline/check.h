// Proves a schedule: every task of every stage and micro-batch runs once and on its own rank, forwards before backwards, input
// halves before weight halves; a replica runs a stage's backwards in micro-batch order; and no tasks wait for one another in a
// circle, messages included (connect.h). For an asynchronous order, it also proves that no forward reads a weight version that
// does not exist yet.
//
// Pure. Threads: any. Errors: Error(ErrorKind::failed) with rank, position and task, or with the whole circle.
// Error(ErrorKind::refused) for directions that wait for each other's gradients, which happens only if gradients are summed in
// turn.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

void check(const Schedule& schedule);

// Throws an error with the circle in which the ranks at these positions wait for one another.
[[noreturn]] void throw_deadlock(const Schedule& schedule, const std::vector<std::size_t>& position);
// Throws for directions whose gradients are summed in turn, if a rank's next gradient waits for another direction's gradient
// and that one waits for it.
[[noreturn]] void throw_gradients_out_of_turn(std::uint32_t rank, const Task& task);

}  // namespace terrace::pipeline
