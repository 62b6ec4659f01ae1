// Makes the math of a GPU. The device (device.h) gets it through a factory, so that tests can supply their own Math.
//
// Owner: the device. It and the runtime outlive the math. Threads, errors: as Math.
#pragma once

#include <functional>
#include <memory>

#include <terrace/core/cuda/runtime.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/math/math.h>

namespace terrace::cuda {

using CudaMathFactory = std::function<std::unique_ptr<Math>(CudaRuntime& runtime, Device& device)>;

// Operations as CUDA kernels and cuBLASLt products. Part of the module. CudaOptions::attention_kernel forces the
// kernel of attention.
std::unique_ptr<Math> make_cuda_math(CudaRuntime& runtime, Device& device, const CudaOptions& options);

}  // namespace terrace::cuda
