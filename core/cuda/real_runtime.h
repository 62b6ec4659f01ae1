// The real CUDA runtime. Part of the module.
//
// Owner: the caller; the runtime has no state. Threads, errors: as CudaRuntime.
#pragma once

#include <memory>

#include <terrace/core/cuda/runtime.h>

namespace terrace::cuda {

std::unique_ptr<CudaRuntime> make_real_cuda_runtime();

}  // namespace terrace::cuda
