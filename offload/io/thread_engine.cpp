// Threads that call pread and pwrite, one request at a time each: for kernels and containers that forbid io_uring.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/io/io_progress.h>

namespace terrace {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  ThreadEngine(std::vector<int> files, int threads) : files_(std::move(files)) {
    try {
      for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { run(); });
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
        if (static_cast<std::size_t>(request->file) >= files_.size()) throw std::logic_error("IoEngine: no such file");
        request->moved_bytes = 0;
        waiting_.push(*request);
        ++queued_;
      }
    }
    work_.notify_all();
  }

  std::size_t poll(std::chrono::nanoseconds wait) override {
    io::IoQueue ended;
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
  std::string name() const override { return "threads"; }

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

  // Bytes moved, or a negative errno.
  [[nodiscard]] std::int64_t call(const IoRequest& request) const {
    const int file = files_[static_cast<std::size_t>(request.file)];
    std::byte* const at = request.buffer + request.moved_bytes;
    const auto bytes = request.bytes - request.moved_bytes;
    const auto offset = static_cast<off_t>(request.offset + request.moved_bytes);
    const auto moved = request.op == IoRequest::Op::read ? ::pread(file, at, bytes, offset) : ::pwrite(file, at, bytes, offset);
    return moved < 0 ? -errno : moved;
  }

  int transfer(IoRequest& request) const {
    for (io::Backoff backoff;;) {
      const auto result = call(request);
      if (const auto error_number = io::account(request, result)) return *error_number;
      if (result != -EAGAIN) continue;
      backoff.refused(now_ns());
      std::this_thread::sleep_for(std::chrono::nanoseconds(backoff.left_ns(now_ns())));
    }
  }

  const std::vector<int> files_;
  mutable std::mutex mutex_;
  std::condition_variable work_, ended_or_woken_;
  io::IoBacklog waiting_;
  io::IoQueue ended_;
  std::size_t queued_ = 0, ended_count_ = 0;
  bool woken_ = false, stopping_ = false;
  std::vector<std::thread> threads_;  // last member: they use all members above
};

}  // namespace

std::unique_ptr<IoEngine> make_thread_engine(const IoOptions& options, int threads) {
  return std::make_unique<ThreadEngine>(options.files, threads);
}

}  // namespace terrace
