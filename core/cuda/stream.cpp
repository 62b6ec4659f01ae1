#include <terrace/core/cuda/stream.h>

#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/cuda/cuda_error.h>

namespace terrace::cuda {
namespace {

constexpr std::size_t kThreadNameLength = 15;  // Linux's limit

void name_thread(std::thread& thread, const std::string& name, const std::string& suffix) {
  const auto text = name.substr(0, kThreadNameLength - suffix.size()) + suffix;
  pthread_setname_np(thread.native_handle(), text.c_str());  // a failure only costs the name
}

std::size_t to_boundary(const std::byte* address, std::size_t boundary) {
  return boundary - reinterpret_cast<std::uintptr_t>(address) % boundary;
}

}  // namespace

CudaStream::CudaStream(Device& device, std::shared_ptr<CudaRuntime> runtime, int device_index, const std::string& name,
                       CudaPieces pieces)
    : device_(device),
      runtime_(std::move(runtime)),
      device_index_(device_index),
      on_(fmt::format("{}, stream \"{}\"", device.name(), name)),
      pieces_(pieces),
      profiler_(runtime_->profiler()),
      events_(std::make_shared<CudaEventPool>(*runtime_, on_)) {
  enter_device();
  if (const int code = runtime_->create_stream(&handle_)) {
    throw CudaError(*runtime_, code, on_, "cudaStreamCreateWithFlags");
  }
  if (profiler_) profiler_->name_stream(handle_, name);
  try {
    issuing_ = std::thread([this] { run_issuing(); });
    completing_ = std::thread([this] { run_completing(); });
    name_thread(issuing_, name, "");
    name_thread(completing_, name, "/end");
  } catch (...) {  // too many threads for this process
    stop();
    throw;
  }
}

void CudaStream::stop() {
  entries_.close();
  if (issuing_.joinable()) issuing_.join();
  completions_.close();
  if (completing_.joinable()) completing_.join();
  if (const int code = runtime_->destroy_stream(handle_)) warn_of_cuda(*runtime_, code, on_, "cudaStreamDestroy");
}

Event CudaStream::record() {
  const auto point = ++recorded_;
  entries_.push(Mark{nullptr, point});
  return {timeline_, point};
}

void CudaStream::enter_device() {
  if (const int code = runtime_->set_device(device_index_)) throw CudaError(*runtime_, code, on_, "cudaSetDevice");
}

// --- The issuing thread ---

void CudaStream::run_issuing() {
  try {
    enter_device();
  } catch (...) {
    poison_from_issuing(std::current_exception());
  }
  while (auto entry = entries_.take()) {
    try {
      if (std::holds_alternative<Range>(*entry) || !is_poisoned()) std::visit([this](auto& e) { issue(e); }, *entry);
    } catch (...) {
      poison_from_issuing(std::current_exception());
    }
    // The callback is called in any case: with the failure, or with null.
    auto* const mark = std::get_if<Mark>(&*entry);
    if (mark && mark->told) push_completion(nullptr, std::move(*mark), nullptr);
  }
  if (unmarked_) finish_unmarked();
}

bool CudaStream::is_poisoned() {
  const std::lock_guard lock(issue_mutex_);
  return poisoned_;
}

// Returns false if the stream has been poisoned: then no more work may be issued.
template <class Call>
bool CudaStream::issue_unless_poisoned(const Call& call) {
  const std::lock_guard lock(issue_mutex_);
  if (!poisoned_) call();
  return !poisoned_;
}

void CudaStream::issue(Work& work) {
  for (const auto& event : std::exchange(followed_, {})) event.wait();
  if (synchronize_issued()) work.run();
}

// Without work since the last event, the point is reached when it is issued, or soon after.
void CudaStream::issue(Announce& announce) {
  if (!unmarked_) return;
  const auto issued = std::make_shared<const IssuedEvent>(runtime_, events_);
  record(issued->event.get());
  if (unmarked_) return;
  announce.points->issue(announce.point, issued);
  push_completion(nullptr, {nullptr, 0, [] {}}, nullptr, issued);
}

// The completing thread also waits for the point: for an error that the other stream reports at its end, and in place of a CUDA
// event behind the wait.
void CudaStream::issue(Follow& follow) {
  const auto event = follow.points->event(follow.point);
  const auto issued = std::dynamic_pointer_cast<const IssuedEvent>(follow.points->wait(follow.point));
  if (!issued || issued->runtime != runtime_) return event.wait();
  const bool followed = issue_unless_poisoned([&] {
    running_ = true;
    if (const int code = runtime_->stream_wait_event(handle_, issued->event.get())) {
      throw CudaError(*runtime_, code, on_, "cudaStreamWaitEvent");
    }
  });
  if (!followed) return;
  std::erase_if(followed_, [](const Event& earlier) { return earlier.done(); });
  followed_.push_back(event);
  push_completion(nullptr, {nullptr, 0, [event] { event.wait(); }}, nullptr);
}

void CudaStream::issue(Launch& launch) {
  issue_unless_poisoned([&] {
    running_ = unmarked_ = true;  // also if it throws: it may have issued some of its kernels
    launch.issue(handle_);
  });
}

void CudaStream::issue(Copy& copy) {
  for (std::size_t at = 0; at < copy.bytes;) {
    auto* const to = copy.to + at;
    const auto* const from = copy.from + at;
    const auto bytes = std::min({copy.bytes - at, pieces_.copy_bytes, to_boundary(to, pieces_.register_bytes),
                                 to_boundary(from, pieces_.register_bytes)});
    const bool issued = issue_unless_poisoned([&] {
      running_ = unmarked_ = true;
      if (const int code = runtime_->copy_async(to, from, bytes, handle_)) {
        throw CudaError(*runtime_, code, on_, fmt::format("cudaMemcpyAsync of {} bytes", bytes));
      }
    });
    if (!issued) return;
    at += bytes;
  }
}

void CudaStream::issue(Mark& mark) {
  CudaEventPool::Lease event;
  if (unmarked_) {
    event = events_->take();
    record(event.get());
    if (unmarked_) return;
  }
  push_completion(std::move(event), std::exchange(mark, {}), nullptr);
}

void CudaStream::record(CudaEventHandle event) {
  const bool recorded = issue_unless_poisoned([&] {
    if (const int code = runtime_->record_event(event, handle_)) throw CudaError(*runtime_, code, on_, "cudaEventRecord");
  });
  if (recorded) unmarked_ = false;
}

// Returns false if the stream has been poisoned. True: all issued work has ended well, and later CUDA errors do not belong to
// it. (While the host work that follows runs, the completing thread could not tell whose error it sees.)
bool CudaStream::synchronize_issued() {
  if (running_) {
    if (const int code = runtime_->synchronize_stream(handle_)) {
      throw CudaError(*runtime_, code, on_, "cudaStreamSynchronize");
    }
    running_ = unmarked_ = false;
  }
  const std::lock_guard lock(issue_mutex_);
  over_ = pushed_;
  return !poisoned_;
}

void CudaStream::push_completion(CudaEventPool::Lease event, Mark mark, std::exception_ptr error,
                                 std::shared_ptr<const IssuedEvent> issued) {
  completions_.push({std::move(event), std::move(mark), std::move(error), ++pushed_, std::move(issued)});
}

// At the end of the stream: if no later event covers this work, its error would be reported nowhere else.
void CudaStream::finish_unmarked() {
  if (const int code = runtime_->synchronize_stream(handle_)) {
    warn_of_cuda(*runtime_, code, on_, "cudaStreamSynchronize");
    runtime_->synchronize_stream(handle_);  // the first call may have returned an earlier error without waiting
  }
}

// The error takes its turn in the queue: completions that were recorded before it still end with their own result.
void CudaStream::poison_from_issuing(std::exception_ptr error) {
  {
    const std::lock_guard lock(issue_mutex_);
    poisoned_ = true;
  }
  running_ = unmarked_ = false;
  push_completion(nullptr, {}, std::move(error));
}

// --- The completing thread ---

void CudaStream::run_completing() {
  try {
    enter_device();
  } catch (...) {
    poison_from_completing(std::current_exception());
  }
  while (auto completion = completions_.take()) {
    try {
      if (!failure_) complete(*completion);
    } catch (...) {
      poison_from_completing(std::current_exception());
    }
    try {
      if (completion->mark.told) completion->mark.told(failure_);
    } catch (...) {
      if (!failure_) poison_from_completing(std::current_exception());
    }
  }
}

void CudaStream::complete(Completion& completion) {
  if (auto* const event = completion.issued ? completion.issued->event.get() : completion.event.get()) {
    const int code = runtime_->synchronize_event(event);
    if (code && poison_unless_over(completion.number)) {
      throw CudaError(*runtime_, code, on_, "cudaEventSynchronize");
    }
    completion.event.reset();
    completion.issued.reset();
  }
  if (completion.error) std::rethrow_exception(completion.error);
  if (completion.mark.check) {
    completion.mark.check();
  } else if (!completion.mark.told) {
    timeline_->advance(completion.mark.point);
  }
}

// CUDA returns errors of other streams' kernels from every call of the process. If the work is already known to have ended
// well, the error is not its own, and the next call will report it.
bool CudaStream::poison_unless_over(std::uint64_t completion) {
  const std::lock_guard lock(issue_mutex_);
  if (completion <= over_) return false;
  poisoned_ = true;
  return true;
}

void CudaStream::poison_from_completing(std::exception_ptr error) {
  {
    const std::lock_guard lock(issue_mutex_);
    poisoned_ = true;
  }
  runtime_->synchronize_stream(handle_);  // its result is ignored: the stream already has an error
  failure_ = error;
  timeline_->fail(std::move(error));
}

CudaStream& cuda_stream(Stream& stream) {
  if (auto* const cuda = dynamic_cast<CudaStream*>(&stream)) return *cuda;
  throw std::logic_error("a CUDA operation was given a stream of " + stream.device().name());
}

}  // namespace terrace::cuda
