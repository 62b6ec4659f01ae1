// An engine whose threads make one blocking call for each request; with pread and pwrite it serves kernels and containers that
// forbid io_uring.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <terrace/core/trace.h>
#include <terrace/offload/io_engine.h>
#include <terrace/offload/io_progress.h>
#include <terrace/offload/transfer_threads.h>

namespace terrace {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  explicit ThreadEngine(TransferThreads how) : how_(std::move(how)) {
    try {
      for (int i = 0; i < std::max(1, how_.threads); ++i) threads_.emplace_back([this] { run(); });
    } catch (...) {  // too many threads for this process
      stop();
      throw;
    }
  }
  ~ThreadEngine() override { stop(); }

  void submit(std::span<IoRequest* const> requests) override {
    {
      const std::lock_guard lock(mutex_);
      for (IoRequest* request : requests) {
        if (static_cast<std::size_t>(request->file) >= how_.files) throw std::logic_error("IoEngine: no such file");
        request->moved_bytes = 0;
        waiting_.push(*request);
        ++queued_;
      }
    }
    work_.notify_all();
  }

  std::size_t poll(std::chrono::nanoseconds wait) override {
    IoQueue ended;
    std::size_t count = 0;
    {
      std::unique_lock lock(mutex_);
      ended_or_woken_.wait_for(lock, wait, [this] { return woken_ || !ended_.empty(); });
      woken_ = false;
      ended = std::exchange(ended_, {});
      count = std::exchange(ended_count_, 0);
      queued_ -= count;
    }
    while (IoRequest* const request = ended.pop()) request->done(*request, request->error_number);
    return count;
  }

  void wake() override {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ended_or_woken_.notify_one();
  }

  std::size_t in_flight() const override {
    const std::lock_guard lock(mutex_);
    return queued_;
  }
  std::string name() const override { return how_.name; }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void run() {
    if (how_.enter) how_.enter();
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
      IoRequest* const request = waiting_.pop();
      if (!request) return;
      lock.unlock();
      request->error_number = transfer(*request);
      lock.lock();
      ended_.push(*request);
      ++ended_count_;
      ended_or_woken_.notify_one();
    }
  }

  int transfer(IoRequest& request) const {
    for (Backoff backoff;;) {
      const auto result = how_.transfer(request);
      if (const auto error_number = account(request, result)) return *error_number;
      if (result != -EAGAIN) continue;
      backoff.refused(now_ns());
      std::this_thread::sleep_for(std::chrono::nanoseconds(backoff.left_ns(now_ns())));
    }
  }

  const TransferThreads how_;
  mutable std::mutex mutex_;
  std::condition_variable work_, ended_or_woken_;
  IoBacklog waiting_;
  IoQueue ended_;
  std::size_t queued_ = 0, ended_count_ = 0;
  bool woken_ = false, stopping_ = false;
  std::vector<std::thread> threads_;  // last member: they use all members above
};

}  // namespace

std::unique_ptr<IoEngine> make_transfer_threads(TransferThreads how) { return std::make_unique<ThreadEngine>(std::move(how)); }

std::int64_t transfer_by_call(int descriptor, const IoRequest& request) {
  std::byte* const at = request.buffer + request.moved_bytes;
  const auto bytes = request.bytes - request.moved_bytes;
  const auto offset = static_cast<off_t>(request.offset + request.moved_bytes);
  const auto moved =
      request.op == IoRequest::Op::read ? ::pread(descriptor, at, bytes, offset) : ::pwrite(descriptor, at, bytes, offset);
  return moved < 0 ? -errno : moved;
}

std::unique_ptr<IoEngine> make_thread_engine(const IoOptions& options, int threads) {
  return make_transfer_threads({.name = "threads",
                                .files = options.files.size(),
                                .threads = threads,
                                .transfer = [files = options.files](const IoRequest& request) {
                                  return transfer_by_call(files[static_cast<std::size_t>(request.file)], request);
                                }});
}

}  // namespace terrace
