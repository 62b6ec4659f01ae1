// The CUDA device on a given runtime. Programs use make_cuda_device() of core/device/cuda.h, which loads the module; the module
// calls this with the real runtime and the CUDA math. Tests call it with a fake runtime.
//
// Owner:   as make_cuda_device(). Memory of the device keeps the runtime alive.
// Threads: any.
// Errors:  CudaError; Error(ErrorKind::missing) for a device that does not exist.
#pragma once

#include <memory>

#include <terrace/core/cuda/cuda_math.h>
#include <terrace/core/cuda/pieces.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/device/cuda.h>

namespace terrace::cuda {

std::unique_ptr<Device> make_device_on(std::shared_ptr<CudaRuntime> runtime, ThreadPool& pool, const CudaOptions& options,
                                       const CudaMathFactory& math, const CudaPieces& pieces = {});

// Both throw std::logic_error for a device of another kind.
int cuda_index(const Device& device);  // N of "cuda:N"
int cuda_multiprocessors(const Device& device);

}  // namespace terrace::cuda
