// The checks of every update before it touches any byte.
//
// Internal to optimizers/.
#pragma once

#include <span>

#include <terrace/optimizers/optimizer.h>

namespace terrace::rules::elementwise {

// Throws Error(ErrorKind::refused) if the arrays do not match each other or these states.
void check(const char* name, std::span<const ChunkKind> states, const UpdateStep& step, const ChunkUpdate& chunk);
// Likewise for a whole layer's arrays, except those of its chunks. `numbers` is the size of its packed state, or 0 if this half
// of the update does not use that state.
void check_layer(const char* name, const LayerShape& shape, const LayerUpdate& layer, std::uint64_t scratch_bytes,
                 std::uint64_t numbers);

}  // namespace terrace::rules::elementwise
