#include <terrace/core/cuda/branch.h>

#include <utility>

#include <terrace/core/cuda/cuda_error.h>

namespace terrace::cuda {

CudaBranch::CudaBranch(std::shared_ptr<CudaRuntime> runtime, std::string on)
    : runtime_(std::move(runtime)), on_(std::move(on)), events_(*runtime_, on_) {
  demand(runtime_->create_stream(&handle_), "cudaStreamCreateWithFlags");
}

CudaBranch::~CudaBranch() {
  if (const int code = runtime_->destroy_stream(handle_)) warn_of_cuda(*runtime_, code, on_, "cudaStreamDestroy");
}

void CudaBranch::demand(int code, const char* call) const {
  if (code != kCudaSuccess) throw CudaError(*runtime_, code, on_, call);
}

CudaEventHandle CudaBranch::event(CudaEventPool::Lease& place) {
  if (!place) place = events_.take();
  return place.get();
}

void CudaBranch::follow(CudaStreamHandle trunk) {
  demand(runtime_->record_event(event(trunk_), trunk), "cudaEventRecord");
  demand(runtime_->stream_wait_event(handle_, trunk_.get()), "cudaStreamWaitEvent");
}

void CudaBranch::mark(std::size_t place) {
  demand(runtime_->record_event(event(places_.at(place)), handle_), "cudaEventRecord");
}

void CudaBranch::hold(CudaStreamHandle trunk, std::size_t place) {
  if (const auto& marked = places_.at(place)) demand(runtime_->stream_wait_event(trunk, marked.get()), "cudaStreamWaitEvent");
}

// If not even an event can be recorded, the host waits instead: buffers are freed when the trunk has ended.
CudaBranch::Join::~Join() {
  auto& runtime = *branch_.runtime_;
  try {
    auto* const end = branch_.event(branch_.end_);
    if (runtime.record_event(end, branch_.handle_) == kCudaSuccess && runtime.stream_wait_event(trunk_, end) == kCudaSuccess)
      return;
  } catch (...) {  // no event could be made
  }
  runtime.synchronize_stream(branch_.handle_);
}

}  // namespace terrace::cuda
