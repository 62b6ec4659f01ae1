// Ranges and names by NVTX, whose headers come with the CUDA toolkit and need no library. In the module.
//
// Owner: the caller. Threads, errors: as CudaProfiler.
#pragma once

#include <memory>

#include <terrace/core/cuda/profiler.h>

namespace terrace {

// Null when this process runs under no profiler: then nothing is ever called.
std::unique_ptr<CudaProfiler> make_nvtx_profiler();

}  // namespace terrace
