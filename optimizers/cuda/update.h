// The launch of an update's kernels on a CUDA stream. In the module (update.cu).
//
// Threads: the stream's issuing thread. Errors: as Optimizer::update(); Error for a launch that fails.
#pragma once

#include <string_view>

#include <terrace/core/cuda/runtime.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::cuda {

void launch_update(CudaStreamHandle stream, std::string_view optimizer, const OptimizerSettings& settings,
                   const UpdateStep& step, const ChunkUpdate& chunk);

}  // namespace terrace::cuda
