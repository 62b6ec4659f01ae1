// A stream of a GPU. An issuing thread takes entries in order and issues them on one CUDA stream, so that the caller never
// blocks. A completing thread waits for CUDA events in order, advances the timeline and calls the callbacks of then(). The GPU
// waits for neither: issued work continues while the issuing thread waits for another stream's event.
//
//   submit   host work: the issuing thread waits until all earlier work of the CUDA stream has ended, then runs it
//   launch   issues kernels on the CUDA stream
//   wait     blocks the issuing thread; earlier work continues
//   follow   blocks it until the other stream has issued its work; then the GPU waits (core/device/issued.h)
//   range    a name that a profiler shows for the work issued between its two ends
//   expect   a check of finished work, on the completing thread
//   record   a point that the completing thread reaches; two points with no work between them share one CUDA event
//
// Owner:   the code that made it; it must not outlive its device.
// Threads: as Stream. Functions of launch() run on the issuing thread and must only issue work; those of then() run on the
//          completing thread.
// Errors:  after a CUDA call that fails, or a function that throws, the stream has failed: later entries are dropped, and later
//          events rethrow. The error is reported only when no work of the stream runs any more, so that its buffers may be
//          freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <terrace/core/cuda/event_pool.h>
#include <terrace/core/cuda/issued_event.h>
#include <terrace/core/cuda/pieces.h>
#include <terrace/core/cuda/profiler.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/cuda/work_queue.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/issued.h>
#include <terrace/core/device/stream_range.h>

namespace terrace::cuda {

class CudaStream final : public Stream, public device::RangedStream, public device::IssuingStream {
 public:
  CudaStream(Device& device, std::shared_ptr<CudaRuntime> runtime, int device_index, const std::string& name,
             CudaPieces pieces);
  ~CudaStream() override { stop(); }  // finishes what was submitted

  void submit(std::function<void()> work) override { entries_.push(Work{std::move(work)}); }
  void then(Told told) override { entries_.push(Mark{std::move(told), 0}); }
  void wait(const Event& event) override { entries_.push(Wait{event}); }
  Event record() override;
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { entries_.push(Copy{to, from, bytes}); }
  Device& device() override { return device_; }

  void announce(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) override {
    entries_.push(Announce{std::move(points), point});
  }
  void follow(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) override {
    entries_.push(Follow{std::move(points), point});
  }

  [[nodiscard]] bool is_watched() const override { return profiler_ != nullptr; }
  void begin_range(std::string name) override { entries_.push(Range{std::move(name), true}); }
  void end_range() override { entries_.push(Range{{}, false}); }

  [[nodiscard]] const std::shared_ptr<CudaRuntime>& runtime() const { return runtime_; }
  // Expires when the stream has finished and is destroyed: another stream may be made at its address.
  [[nodiscard]] const std::shared_ptr<const void>& lifetime() const { return lifetime_; }
  void launch(std::function<void(CudaStreamHandle)> kernels) { entries_.push(Launch{std::move(kernels)}); }
  // When kernels have ended, the completing thread calls `check` to see what they reported. If it throws, the stream fails as
  // if a kernel had failed. Work submitted later does not wait for it.
  void expect(std::function<void()> check) { entries_.push(Mark{nullptr, 0, std::move(check)}); }

 private:
  struct Work {
    std::function<void()> run;
  };
  struct Launch {
    std::function<void(CudaStreamHandle)> issue;
  };
  struct Copy {
    std::byte* to;
    const std::byte* from;
    std::size_t bytes;
  };
  struct Range {  // the beginning or the end of a range
    std::string name;
    bool begins;
  };
  struct Wait {
    Event event;
  };
  struct Announce {
    std::shared_ptr<device::IssuedPoints> points;
    std::uint64_t point;
  };
  struct Follow {
    std::shared_ptr<device::IssuedPoints> points;
    std::uint64_t point;
  };
  struct Mark {  // a function to call, or a point of the timeline
    Told told;
    std::uint64_t point;
    std::function<void()> check = {};
  };
  using Entry = std::variant<Work, Launch, Copy, Range, Wait, Announce, Follow, Mark>;
  struct Completion {
    CudaEventPool::Lease event;  // null: no work was issued since the last one
    Mark mark;
    std::exception_ptr error;                        // the stream is poisoned from here on
    std::uint64_t number = 0;                        // number of this completion, from 1
    std::shared_ptr<const IssuedEvent> issued = {};  // instead of `event`
  };

  void stop();
  void run_issuing();
  void run_completing();
  void issue(Work& work);
  void issue(Launch& launch);
  void issue(Copy& copy);
  void issue(Range& range) { range.begins ? profiler_->begin_range(range.name) : profiler_->end_range(); }
  void issue(Wait& wait) { wait.event.wait(); }
  void issue(Announce& announce);
  void issue(Follow& follow);
  void issue(Mark& mark);
  void enter_device();
  template <class Call>
  bool issue_unless_poisoned(const Call& call);
  bool is_poisoned();
  bool synchronize_issued();
  void finish_unmarked();
  void record(CudaEventHandle event);
  void push_completion(CudaEventPool::Lease event, Mark mark, std::exception_ptr error,
                       std::shared_ptr<const IssuedEvent> issued = nullptr);
  void poison_from_issuing(std::exception_ptr error);
  void complete(Completion& completion);
  bool poison_unless_over(std::uint64_t completion);
  void poison_from_completing(std::exception_ptr error);

  Device& device_;
  const std::shared_ptr<CudaRuntime> runtime_;
  const int device_index_;
  const std::string on_;  // "cuda:0, stream \"upload\"", for errors
  const CudaPieces pieces_;
  CudaProfiler* const profiler_;  // null: no profiler is attached
  const std::shared_ptr<const void> lifetime_ = std::make_shared<char>();
  CudaStreamHandle handle_ = nullptr;
  const std::shared_ptr<CudaEventPool> events_;
  const std::shared_ptr<Timeline> timeline_ = std::make_shared<Timeline>();
  std::uint64_t recorded_ = 0;  // used by the submitting thread
  WorkQueue<Entry> entries_;
  WorkQueue<Completion> completions_;
  // Held while work is issued: once the completing thread has poisoned the stream under this lock, no more work is issued.
  std::mutex issue_mutex_;
  bool poisoned_ = false;             // under issue_mutex_
  std::uint64_t over_ = 0;            // under issue_mutex_: completions up to this one are known to have ended well
  std::uint64_t pushed_ = 0;          // the issuing thread's: number of completions
  bool running_ = false;              // the issuing thread's: work was issued since the last synchronisation
  bool unmarked_ = false;             // the issuing thread's: work was issued since the last CUDA event
  std::vector<Event> followed_;       // the issuing thread's: points that the GPU waits for, and that may still fail
  std::exception_ptr failure_;        // the completing thread's: the error of the timeline
  std::thread issuing_, completing_;  // last: they use all of the above
};

// Returns `stream` as a CudaStream; std::logic_error if it is not one.
CudaStream& cuda_stream(Stream& stream);

}  // namespace terrace::cuda
