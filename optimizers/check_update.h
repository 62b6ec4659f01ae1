// What every update is asked before it touches a byte.
//
// Internal to optimizers/.
#pragma once

#include <cstddef>

#include <terrace/optimizers/optimizer.h>

namespace terrace::elementwise {

// Throws Error(Exit::usage) when the arrays do not go together or do not have `states` states.
void check(const char* name, std::size_t states, const UpdateStep& step, const ChunkUpdate& chunk);

}  // namespace terrace::elementwise
