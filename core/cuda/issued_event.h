// An event that other streams of a GPU may wait for. It keeps alive what its release needs: they may be the last to use it.
//
// Owner: shared by the stream that recorded it and those that wait. Threads: any. Errors: CudaError.
#pragma once

#include <memory>
#include <utility>

#include <terrace/core/cuda/event_pool.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/device/issued.h>

namespace terrace::cuda {

struct IssuedEvent final : device::Issued {
  IssuedEvent(std::shared_ptr<CudaRuntime> of, std::shared_ptr<CudaEventPool> from)
      : runtime(std::move(of)), pool(std::move(from)), event(pool->take()) {}
  std::shared_ptr<CudaRuntime> runtime;
  std::shared_ptr<CudaEventPool> pool;
  CudaEventPool::Lease event;
};

}  // namespace terrace::cuda
