// What every update is asked before it touches a byte.
//
// Internal to optimizers/.
#pragma once

#include <span>

#include <terrace/optimizers/optimizer.h>

namespace terrace::elementwise {

// Throws Error(Exit::usage) when the arrays do not go together or are not those of these states.
void check(const char* name, std::span<const Kind> states, const UpdateStep& step, const ChunkUpdate& chunk);
// Likewise of a whole layer's arrays, but for those of its chunks; `numbers`: of its packed state, where this half uses it.
void check_layer(const char* name, const LayerShape& shape, const LayerUpdate& layer, std::uint64_t scratch_bytes,
                 std::uint64_t numbers);

}  // namespace terrace::elementwise
