// The CUDA runtime itself. In the module.
//
// Owner: the caller; it keeps nothing. Threads, errors: as CudaRuntime.
#pragma once

#include <memory>

#include <terrace/core/cuda/runtime.h>

namespace terrace {

std::unique_ptr<CudaRuntime> make_real_cuda_runtime();

}  // namespace terrace
