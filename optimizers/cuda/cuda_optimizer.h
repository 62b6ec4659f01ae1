// An optimizer whose updates on a stream of a GPU run there, and everywhere else on the host: the same bits either way.
//
// Owner:   the caller; it keeps nothing on the GPU.
// Threads: as Optimizer. Errors: as Optimizer; a launch that fails poisons its stream.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include <terrace/core/cuda/runtime.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace {

// launch_update() of cuda/update.h; tests have another one.
using LaunchUpdate = std::function<void(CudaStreamHandle stream, std::string_view optimizer, const OptimizerSettings& settings,
                                        const UpdateStep& step, const ChunkUpdate& chunk)>;
// enqueue_layer_update() likewise, on the rank's thread.
using EnqueueLayer = std::function<void(Stream& stream, std::string_view optimizer, const OptimizerSettings& settings,
                                        const UpdateStep& step, const LayerUpdate& layer)>;
std::unique_ptr<Optimizer> make_cuda_optimizer(std::string_view name, const OptimizerSettings& settings, LaunchUpdate launch,
                                               EnqueueLayer enqueue_layer = {});

}  // namespace terrace
