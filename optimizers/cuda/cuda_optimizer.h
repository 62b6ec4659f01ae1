// An optimizer that runs updates enqueued on a GPU's stream on that GPU, and all others on the host, with the same bits (except
// for an optimizer with LayerUnit::bits_of_device).
//
// Owner:   the caller; it keeps nothing on the GPU.
// Threads: as Optimizer. Errors: as Optimizer; a launch that fails makes its stream fail.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include <terrace/core/cuda/runtime.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::rules {

// launch_update() of cuda/update.h; tests pass another function.
using LaunchUpdate = std::function<void(cuda::CudaStreamHandle stream, std::string_view optimizer,
                                        const OptimizerSettings& settings, const UpdateStep& step, const ChunkUpdate& chunk)>;
// enqueue_layer_update() of the same file, called on the rank's thread.
using EnqueueLayer = std::function<void(Stream& stream, std::string_view optimizer, const OptimizerSettings& settings,
                                        const UpdateStep& step, const LayerUpdate& layer)>;
std::unique_ptr<Optimizer> make_cuda_optimizer(std::string_view name, const OptimizerSettings& settings, LaunchUpdate launch,
                                               EnqueueLayer enqueue_layer = {});

}  // namespace terrace::rules
