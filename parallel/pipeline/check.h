// Proves a schedule: every task of every stage and micro-batch once and on its own rank, forwards before backwards, input
// halves before weight halves, backwards of a stage in micro-batch order on a replica, and no tasks that wait for one another
// in a circle, messages included (connect.h). Of an asynchronous order, that no forward reads weights that are not made yet.
//
// Pure. Threads: any. Errors: Error(Exit::runtime) that names rank, position and task; of a circle, all of it.
// Error(Exit::usage) for gradients out of turn, which are none where they are added up once.
#pragma once

#include <cstddef>
#include <vector>

#include <terrace/parallel/pipeline/schedule.h>

namespace terrace::pipeline {

void check(const Schedule& schedule);

// The circle in which the ranks at these positions wait for one another.
[[noreturn]] void throw_deadlock(const Schedule& schedule, const std::vector<std::size_t>& position);
// Of directions whose gradients are added up in turn: a rank's next one waits for another direction's, and that one for it.
[[noreturn]] void throw_gradients_out_of_turn(std::uint32_t rank, const Task& task);

}  // namespace terrace::pipeline
