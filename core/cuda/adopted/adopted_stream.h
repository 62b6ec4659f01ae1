// A CUDA stream that the caller has made: the caller launches its kernels there itself. Here it waits for the copies of other
// streams, and what it has been given becomes events for them. Calls issue on the caller's thread; a completing thread waits
// for CUDA events in order, advances the timeline and calls the callbacks of then().
//
//   submit   blocks the caller until all earlier work of the CUDA stream has ended, and runs the work there
//   wait     blocks the caller: only a point that is announced can be waited for on the GPU
//   follow   blocks the caller until the other stream has issued its work; then the GPU waits (core/device/issued.h)
//
// Owner:   the caller, which destroys it before the CUDA stream. Threads: as Stream; the calling thread's device is set.
// Errors:  calls that issue throw CudaError, or the error of the point that they wait for. What fails later, on the GPU or on a
//          followed stream, fails the later events and callbacks: work that the caller has launched by then has run.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <terrace/core/cuda/event_pool.h>
#include <terrace/core/cuda/issued_event.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/cuda/work_queue.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/issued.h>

namespace terrace::cuda {

class AdoptedStream final : public Stream, public device::IssuingStream {
 public:
  AdoptedStream(Device& device, std::shared_ptr<CudaRuntime> runtime, int device_index, const std::string& name,
                CudaStreamHandle handle);
  ~AdoptedStream() override;  // when all that it has recorded has ended
  AdoptedStream(const AdoptedStream&) = delete;
  AdoptedStream& operator=(const AdoptedStream&) = delete;

  void submit(std::function<void()> work) override;
  void then(Told told) override { record_completion({.told = std::move(told)}); }
  void wait(const Event& event) override { event.wait(); }
  Event record() override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override;
  Device& device() override { return device_; }

  void announce(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) override;
  void follow(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) override;
  [[nodiscard]] bool blocks_its_caller() const override { return true; }

 private:
  struct Completion {
    std::shared_ptr<const IssuedEvent> event = {};  // null: no work precedes it
    std::exception_ptr error = {};                  // the event could not be recorded
    Event followed = {};                            // of another stream: the GPU has waited for it, and it may still fail
    Told told = {};
    std::uint64_t point = 0;  // of the timeline; 0: none
  };

  void enter_device();
  std::shared_ptr<const IssuedEvent> record_event();
  void record_completion(Completion completion);
  void run_completing();
  void complete(const Completion& completion);

  Device& device_;
  const std::shared_ptr<CudaRuntime> runtime_;
  const int device_index_;
  const std::string on_;  // for errors
  const CudaStreamHandle handle_;
  const std::shared_ptr<CudaEventPool> events_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::uint64_t recorded_ = 0;  // the caller's
  std::exception_ptr failure_;  // the completing thread's
  WorkQueue<Completion> completions_;
  std::thread completing_;  // last: it uses all of the above
};

}  // namespace terrace::cuda
