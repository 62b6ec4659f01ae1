// Memory of a GPU, and host memory that a GPU can copy from and to at full speed.
//
// Owner:   both keep the runtime alive. Their slabs must be freed before they are destroyed.
// Threads: any.
// Errors:  CudaError with the size, and the free bytes. A failure to free memory is only a warning: CUDA reports the errors of
//          earlier work there, too.
#pragma once

#include <memory>
#include <string>

#include <terrace/core/cuda/pieces.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/device/memory_resource.h>

namespace terrace {
class ThreadPool;
}  // namespace terrace

namespace terrace::cuda {

// Uses cudaMalloc, not CUDA's stream-ordered pool: an arena is allocated once per run, so a pool would not be faster; a pool
// keeps more memory than it hands out; and cudaFree waits for work that still uses the memory. Not zeroed. Has no limit (see
// make_limited_memory).
std::unique_ptr<MemoryResource> make_device_memory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on);

// The slabs of `inner`, registered with CUDA by the pool's threads in pieces (pieces.h), and unregistered before they are
// returned. For large slabs, progress is printed on standard error. The pool must outlive every call of allocate().
std::unique_ptr<MemoryResource> make_registered_memory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on,
                                                       ThreadPool& pool, std::unique_ptr<MemoryResource> inner,
                                                       const CudaPieces& pieces);

}  // namespace terrace::cuda
