// Tiles of a parameter (ParamSpec::tiles): the rows or columns of each tile, and where its elements lie in the whole.
//
// A parameter that is cut into tiles is stored tile by tile, each row-major, so that a tile is contiguous.
//
// Pure. Threads: any. Errors: std::logic_error for a tile that does not exist.
#pragma once

#include <terrace/parallel/model/layer.h>

namespace terrace::model {

comm::Block tile_of(const ParamSpec& param, std::uint32_t tile);  // its range in the dimension that is cut, in stored order
Shape tile_shape(const ParamSpec& param, std::uint32_t tile);

// Like each_run() of tensor_split.h, but `first`, `count` and `in_part` count elements in stored order.
void each_stored_run(const ParamSpec& param, const TensorParallel& tensor, std::uint64_t first, std::uint64_t count,
                     const std::function<void(const SplitRun&)>& use);

}  // namespace terrace::model
