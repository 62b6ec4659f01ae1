// Tiles of a parameter (ParamSpec::tiles): which rows or columns each has, and where its elements lie in the whole.
//
// A parameter in tiles of columns is stored tile by tile, each row-major, so that a tile is one piece.
//
// Pure. Threads: any. Errors: std::logic_error for a tile that there is not.
#pragma once

#include <terrace/parallel/layer.h>

namespace terrace {

Block tile_of(const ParamSpec& param, std::uint32_t tile);  // of the dimension that is cut
Shape tile_shape(const ParamSpec& param, std::uint32_t tile);

// As each_run() of tensor_split.h, for elements in the order in which they are stored: `in_part` counts in that order.
void each_stored_run(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first, std::uint64_t count,
                     const std::function<void(const SplitRun&)>& use);

}  // namespace terrace
