#include <terrace/core/cuda/adopted/adopted_stream.h>

#include <utility>

#include <fmt/format.h>

#include <terrace/core/cuda/cuda_error.h>

namespace terrace::cuda {

AdoptedStream::AdoptedStream(Device& device, std::shared_ptr<CudaRuntime> runtime, int device_index, const std::string& name,
                             CudaStreamHandle handle)
    : device_(device),
      runtime_(std::move(runtime)),
      device_index_(device_index),
      on_(fmt::format("{}, adopted stream \"{}\"", device.name(), name)),
      handle_(handle),
      events_(std::make_shared<CudaEventPool>(*runtime_, on_)),
      completing_([this] { run_completing(); }) {}

AdoptedStream::~AdoptedStream() {
  completions_.close();
  completing_.join();
}

void AdoptedStream::enter_device() {
  if (const int code = runtime_->set_device(device_index_)) throw CudaError(*runtime_, code, on_, "cudaSetDevice");
}

// --- The caller's thread ---

void AdoptedStream::submit(std::function<void()> work) {
  enter_device();
  if (const int code = runtime_->synchronize_stream(handle_)) throw CudaError(*runtime_, code, on_, "cudaStreamSynchronize");
  work();
}

Event AdoptedStream::record() {
  const auto point = ++recorded_;
  record_completion({.point = point});
  return {timeline_, point};
}

void AdoptedStream::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  enter_device();
  if (const int code = runtime_->copy_async(to, from, bytes, handle_))
    throw CudaError(*runtime_, code, on_, fmt::format("cudaMemcpyAsync of {} bytes", bytes));
}

// The completion keeps the event until its work has ended.
void AdoptedStream::announce(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) {
  Completion completion;
  try {
    completion.event = record_event();
    points->issue(point, completion.event);
  } catch (...) {
    completion.error = std::current_exception();
  }
  completions_.push(std::move(completion));
}

void AdoptedStream::follow(std::shared_ptr<device::IssuedPoints> points, std::uint64_t point) {
  const auto event = points->event(point);
  const auto issued = std::dynamic_pointer_cast<const IssuedEvent>(points->wait(point));
  if (!issued || issued->runtime != runtime_) return event.wait();
  enter_device();
  if (const int code = runtime_->stream_wait_event(handle_, issued->event.get()))
    throw CudaError(*runtime_, code, on_, "cudaStreamWaitEvent");
  completions_.push({.followed = event});
}

// Always records: the caller may have launched work since the last event.
std::shared_ptr<const IssuedEvent> AdoptedStream::record_event() {
  enter_device();
  auto issued = std::make_shared<const IssuedEvent>(runtime_, events_);
  if (const int code = runtime_->record_event(issued->event.get(), handle_))
    throw CudaError(*runtime_, code, on_, "cudaEventRecord");
  return issued;
}

void AdoptedStream::record_completion(Completion completion) {
  try {
    completion.event = record_event();
  } catch (...) {
    completion.error = std::current_exception();
  }
  completions_.push(std::move(completion));
}

// --- The completing thread ---

void AdoptedStream::run_completing() {
  const auto fail = [this](std::exception_ptr error) {
    if (failure_) return;  // the first error is the cause
    failure_ = std::move(error);
    timeline_->fail(failure_);
  };
  try {
    enter_device();
  } catch (...) {
    fail(std::current_exception());
  }
  while (auto completion = completions_.take()) {
    try {
      complete(*completion);
    } catch (...) {
      fail(std::current_exception());
    }
    completion->event.reset();
    if (completion->told) completion->told(failure_);
    if (completion->point != 0 && !failure_) timeline_->advance(completion->point);
  }
}

// After a failure, too, it waits: the caller's work may still run, and its buffers must outlive it.
void AdoptedStream::complete(const Completion& completion) {
  if (completion.event) {
    if (const int code = runtime_->synchronize_event(completion.event->event.get()))
      throw CudaError(*runtime_, code, on_, "cudaEventSynchronize");
  }
  if (completion.error) std::rethrow_exception(completion.error);
  completion.followed.wait();
}

}  // namespace terrace::cuda
