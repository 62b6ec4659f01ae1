#include <terrace/core/cuda/math/gpu_time.h>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <terrace/core/base/error.h>

namespace terrace::cuda {
namespace {

void check(const char* call, cudaError_t error) {
  if (error != cudaSuccess) throw Error(fmt::format("timing on the GPU: {}: {}", call, cudaGetErrorString(error)));
}

class TimeEvent {
 public:
  TimeEvent() { check("cudaEventCreate", cudaEventCreate(&event_)); }
  ~TimeEvent() { cudaEventDestroy(event_); }
  TimeEvent(const TimeEvent&) = delete;
  TimeEvent& operator=(const TimeEvent&) = delete;
  [[nodiscard]] cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

double time_on_gpu_ns(void* stream, const std::function<void()>& issue) {
  const TimeEvent begin, end;
  auto* const on = static_cast<cudaStream_t>(stream);
  check("cudaEventRecord", cudaEventRecord(begin.get(), on));
  issue();
  check("cudaEventRecord", cudaEventRecord(end.get(), on));
  check("cudaEventSynchronize", cudaEventSynchronize(end.get()));
  float ms = 0;
  check("cudaEventElapsedTime", cudaEventElapsedTime(&ms, begin.get(), end.get()));
  return ms * 1e6;
}

}  // namespace terrace::cuda
