// Reuses the CUDA events of one stream: making one costs more than recording it.
//
// Owner:   the stream; all events must be back before the pool is destroyed. Threads: any.
// Errors:  CudaError.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <terrace/core/cuda/runtime.h>

namespace terrace::cuda {

class CudaEventPool {
 public:
  CudaEventPool(CudaRuntime& runtime, std::string on) : runtime_(runtime), on_(std::move(on)) {}
  ~CudaEventPool();
  CudaEventPool(const CudaEventPool&) = delete;
  CudaEventPool& operator=(const CudaEventPool&) = delete;

  // Deleter that returns an event to its pool.
  struct Return {
    CudaEventPool* pool;
    void operator()(CudaEventHandle event) const noexcept { pool->give(event); }
  };
  using Lease = std::unique_ptr<CUevent_st, Return>;
  Lease take();

 private:
  void give(CudaEventHandle event) noexcept;

  CudaRuntime& runtime_;
  const std::string on_;
  std::mutex mutex_;
  std::vector<CudaEventHandle> all_, free_;
};

}  // namespace terrace::cuda
