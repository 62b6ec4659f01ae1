#include <terrace/core/cuda/event_pool.h>

#include <terrace/core/cuda/cuda_error.h>

namespace terrace::cuda {

CudaEventPool::~CudaEventPool() {
  for (auto* const event : all_)
    if (const int code = runtime_.destroy_event(event)) warn_of_cuda(runtime_, code, on_, "cudaEventDestroy");
}

CudaEventPool::Lease CudaEventPool::take() {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    // Reserve first: then no event that was made can be lost, and give() never allocates.
    all_.reserve(all_.size() + 1);
    free_.reserve(all_.size() + 1);
    CudaEventHandle event = nullptr;
    if (const int code = runtime_.create_event(&event)) throw CudaError(runtime_, code, on_, "cudaEventCreateWithFlags");
    all_.push_back(event);
    return {event, Return{this}};
  }
  auto* const event = free_.back();
  free_.pop_back();
  return {event, Return{this}};
}

void CudaEventPool::give(CudaEventHandle event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

}  // namespace terrace::cuda
