// Passes ranges and names to NVTX, whose headers come with the CUDA toolkit and need no library. Part of the module.
//
// Owner: the caller. Threads, errors: as CudaProfiler.
#pragma once

#include <memory>

#include <terrace/core/cuda/profiler.h>

namespace terrace::cuda {

// Null if this process runs under no profiler: then no call is ever made.
std::unique_ptr<CudaProfiler> make_nvtx_profiler();

}  // namespace terrace::cuda
