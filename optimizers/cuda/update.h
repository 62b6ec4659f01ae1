// Updates by kernels on a CUDA stream. In the module (update.cu, layer_update.cu).
//
// Threads: launch_update() and maps_on_device(): the stream's issuing thread; enqueue_layer_update(): the rank's. Errors: as
// Optimizer::update(); Error for a launch that fails.
#pragma once

#include <string_view>

#include <terrace/core/cuda/runtime.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace::cuda {

void launch_update(CudaStreamHandle stream, std::string_view optimizer, const OptimizerSettings& settings,
                   const UpdateStep& step, const ChunkUpdate& chunk);

// The update of a whole layer: enqueues its kernels, and the products of the device's math between them.
void enqueue_layer_update(Stream& stream, std::string_view optimizer, const OptimizerSettings& settings, const UpdateStep& step,
                          const LayerUpdate& layer);

struct UpdateMaps;
UpdateMaps maps_on_device();  // of the codes of 8-bit states; each device has its own copy of a module's symbols

}  // namespace terrace::cuda
