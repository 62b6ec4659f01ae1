// The math of a GPU, made by the device (device.h) through a factory, so that tests can give it a Math of their own.
//
// Owner: the device, which outlives it as the runtime does. Threads, errors: as Math.
#pragma once

#include <functional>
#include <memory>

#include <terrace/core/cuda.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/math.h>

namespace terrace {

using CudaMathFactory = std::function<std::unique_ptr<Math>(CudaRuntime& runtime, Device& device)>;

// Operations as CUDA kernels and cuBLASLt products. In the module. TERRACE_ATTENTION_KERNEL=warps|warpgroups forces attention's
// kernel.
std::unique_ptr<Math> make_cuda_math(CudaRuntime& runtime, Device& device, const CudaOptions& options);

}  // namespace terrace
