// io_uring: one ring, used by one thread, with one system call for a batch of submissions and one for a wait.
//
// The ring is created disabled and enabled at its first use, because SINGLE_ISSUER binds it to the thread that enables it.
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/offload/io/direct_io.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/io/io_progress.h>

namespace terrace {
namespace {

constexpr std::uint64_t kBufferLimitBytes = kGiB;  // the kernel's, for one registered buffer
constexpr unsigned kWantedFlags =
    IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_COOP_TASKRUN;

// The kernel's thread takes the submissions, so no task work is deferred to this thread.
constexpr unsigned kKernelSubmitsFlags = IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_SQPOLL;
constexpr unsigned kDevicePollsFlags =
    IORING_SETUP_R_DISABLED | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_IOPOLL;

unsigned wanted_flags(const IoOptions& options) {
  return options.device_polls ? kDevicePollsFlags : options.kernel_submits ? kKernelSubmitsFlags : kWantedFlags;
}

class UringEngine final : public IoEngine {
 public:
  static std::unique_ptr<UringEngine> make(const IoOptions& options, std::string& why) {
    std::unique_ptr<UringEngine> engine(new UringEngine(options));
    if (options.device_polls && !std::ranges::all_of(options.files, io::drive_can_be_polled)) {
      why = "IOPOLL needs files opened with O_DIRECT on drives with polled queues (kernel option nvme.poll_queues=N)";
      return nullptr;
    }
    if (!engine->open_ring(why)) return nullptr;
    engine->register_files();
    engine->register_buffers(options.buffers);
    return engine;
  }

  ~UringEngine() override {
    if (ring_open_) io_uring_queue_exit(&ring_);  // also cancels the armed poll, which writes to no memory of this process
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }

  void submit(std::span<IoRequest* const> requests) override {
    enable();
    for (IoRequest* request : requests) {
      request->moved_bytes = 0;
      waiting_.push(*request);
    }
    queued_ += requests.size();
    fill();
    enter_without_wait();
  }

  std::size_t poll(std::chrono::nanoseconds wait) override {
    enable();
    if (!device_polls()) arm_wake();
    fill();
    if (backoff_.active()) wait = std::min(wait, std::chrono::nanoseconds(backoff_.left_ns(now_ns())));
    if (io_uring_cq_ready(&ring_) == 0) {
      if (wait.count() > 0) {
        device_polls() ? poll_device(wait) : enter_and_wait(wait);
      } else {
        enter_without_wait();
      }
    }
    const auto ended = reap();
    fill();
    enter_without_wait();  // submits continued and queued requests, so that the device never idles while the caller computes
    return ended;
  }

  void wake() override {
    const std::uint64_t one = 1;
    while (::write(wake_fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  std::size_t in_flight() const override { return queued_; }
  std::string name() const override { return "uring"; }

 private:
  explicit UringEngine(const IoOptions& options)
      : depth_(std::max(1U, options.queue_depth)),
        window_(depth_, options.window_bytes),
        files_(options.files),
        wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        flags_(wanted_flags(options)),
        log_(options.choice.log) {}

  [[nodiscard]] bool device_polls() const { return flags_ & IORING_SETUP_IOPOLL; }

  bool open_ring(std::string& why) {
    if (wake_fd_ < 0) {
      why = fmt::format("eventfd: {}", describe_errno(errno));
      return false;
    }
    int result = io_uring_queue_init(depth_ + 1, &ring_, flags_);  // one more: the wake poll
    if (result == -EINVAL) {  // a kernel before 6.1 does not know the flags; all of them only save time
      flags_ &= IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL;
      result = io_uring_queue_init(depth_ + 1, &ring_, flags_);
    }
    if (result < 0) why = fmt::format("io_uring_setup: {}", describe_errno(-result));
    ring_open_ = result >= 0;
    return ring_open_ && may_register(why);
  }

  // A disabled ring cannot be enabled without this call. Checked now, while another engine can still be chosen.
  bool may_register(std::string& why) const {
    alignas(io_uring_probe) std::array<std::byte, sizeof(io_uring_probe)> nothing{};
    if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_PROBE, nothing.data(), 0) == 0) return true;
    why = fmt::format("io_uring_register: {}", describe_errno(errno));
    return false;
  }

  void register_files() {
    if (files_.empty()) return;
    const int result = io_uring_register_files(&ring_, files_.data(), static_cast<unsigned>(files_.size()));
    files_registered_ = result == 0;
    if (result < 0) {
      log_.warn(
          fmt::format("io_uring runs without registered files: {}; a higher `ulimit -n` may help", describe_errno(-result)));
    }
  }

  void register_buffers(const std::vector<std::span<std::byte>>& buffers) {
    std::vector<iovec> spans;
    std::uint64_t total = 0;
    for (const auto& buffer : buffers) {
      for (std::uint64_t at = 0; at < buffer.size(); at += kBufferLimitBytes) {
        spans.push_back({buffer.data() + at, std::min<std::uint64_t>(kBufferLimitBytes, buffer.size() - at)});
      }
      total += buffer.size();
    }
    if (spans.empty()) return;
    std::ranges::sort(spans, {}, &iovec::iov_base);
    const int result = io_uring_register_buffers(&ring_, spans.data(), static_cast<unsigned>(spans.size()));
    if (result == 0) {
      buffers_ = std::move(spans);
      return;
    }
    if (result == -ENOMEM) {
      warn_of_memlock(log_, total, ENOMEM);
    } else {
      log_.warn(fmt::format("io_uring runs without registered buffers ({}), which costs CPU time: {}", format_bytes(total),
                            describe_errno(-result)));
    }
  }

  void enable() {
    if (enabled_) return;
    if (flags_ & IORING_SETUP_R_DISABLED) {
      // liburing 2.3 declares io_uring_enable_rings(), but its shared library does not export it.
      if (::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0) < 0) {
        throw errno_error(errno, {}, "io_uring could not be enabled");
      }
    }
    enabled_ = true;
  }

  // One-shot, which every kernel supports; armed again after each wake.
  void arm_wake() {
    if (wake_armed_) return;
    io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
    if (!sqe) return;  // the next poll finds room
    io_uring_prep_poll_add(sqe, wake_fd_, POLLIN);
    io_uring_sqe_set_data(sqe, nullptr);
    wake_armed_ = true;
  }

  // Moves requests from the engine's queue into the ring, up to the depth and the window.
  void fill() {
    if (backoff_.active() && backoff_.left_ns(now_ns()) > 0) return;
    while (window_.room() && !waiting_.empty()) {
      io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
      if (!sqe) return;
      auto& request = *waiting_.pop();
      prepare(*sqe, request);
      window_.start(request);
    }
  }

  void prepare(io_uring_sqe& sqe, IoRequest& request) {
    std::byte* const at = request.buffer + request.moved_bytes;
    const auto bytes = static_cast<unsigned>(std::min<std::uint64_t>(request.bytes - request.moved_bytes, kGiB));
    const auto offset = request.offset + request.moved_bytes;
    const auto file_index = static_cast<std::size_t>(request.file);
    if (file_index >= files_.size()) throw std::logic_error("IoEngine: no such file");
    const int file = files_registered_ ? request.file : files_[file_index];
    const int buffer = find_buffer(at, bytes);
    if (request.op == IoRequest::Op::read) {
      if (buffer >= 0) {
        io_uring_prep_read_fixed(&sqe, file, at, bytes, offset, buffer);
      } else {
        io_uring_prep_read(&sqe, file, at, bytes, offset);
      }
    } else {
      if (buffer >= 0) {
        io_uring_prep_write_fixed(&sqe, file, at, bytes, offset, buffer);
      } else {
        io_uring_prep_write(&sqe, file, at, bytes, offset);
      }
    }
    if (files_registered_) io_uring_sqe_set_flags(&sqe, IOSQE_FIXED_FILE);
    io_uring_sqe_set_data(&sqe, &request);
  }

  // The index of the registered span that holds all these bytes; -1: none (the kernel then pins the pages for this request).
  int find_buffer(const std::byte* at, std::uint64_t bytes) const {
    const auto after = std::ranges::upper_bound(buffers_, static_cast<const void*>(at), std::less<>{},
                                                [](const iovec& v) { return static_cast<const void*>(v.iov_base); });
    if (after == buffers_.begin()) return -1;
    const auto& span = *(after - 1);
    const auto into = static_cast<std::uint64_t>(at - static_cast<const std::byte*>(span.iov_base));
    return into + bytes <= span.iov_len ? static_cast<int>(after - 1 - buffers_.begin()) : -1;
  }

  void enter_without_wait() {
    if (io_uring_sq_ready(&ring_) == 0 && wait_free()) return;
    check(flags_ & kFetchFlags ? io_uring_submit_and_get_events(&ring_) : io_uring_submit(&ring_));
  }
  // True if no system call is needed to fetch completions: without these flags the kernel posts them by itself.
  static constexpr unsigned kFetchFlags = IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_IOPOLL;
  [[nodiscard]] bool wait_free() const { return !(flags_ & kFetchFlags) || window_.requests() == 0; }

  void enter_and_wait(std::chrono::nanoseconds wait) {
    __kernel_timespec limit{};
    limit.tv_sec = wait.count() / 1'000'000'000;
    limit.tv_nsec = wait.count() % 1'000'000'000;
    io_uring_cqe* first = nullptr;
    check(io_uring_submit_and_wait_timeout(&ring_, &first, 1, &limit, nullptr));
  }

  // A ring that polls drives cannot poll the wake descriptor, so this checks the descriptor between two polls; without requests
  // in flight, the thread sleeps on the descriptor.
  void poll_device(std::chrono::nanoseconds wait) {
    if (window_.requests() == 0) {
      const timespec limit{wait.count() / 1'000'000'000, wait.count() % 1'000'000'000};
      pollfd wake{wake_fd_, POLLIN, 0};
      ::ppoll(&wake, 1, &limit, nullptr);
      clear_wake();
      return;
    }
    const auto end_ns = now_ns() + wait.count();
    do {
      enter_without_wait();
    } while (io_uring_cq_ready(&ring_) == 0 && !clear_wake() && now_ns() < end_ns);
  }

  // Harmless results of a system call: the time has passed, a signal arrived, or the kernel lacks resources for a moment.
  static void check(int result) {
    if (result >= 0 || result == -ETIME || result == -EINTR || result == -EAGAIN || result == -EBUSY) return;
    throw errno_error(-result, {}, "io_uring_enter");
  }

  std::size_t reap() {
    std::size_t ended = 0;
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe) {
      auto* const request = static_cast<IoRequest*>(io_uring_cqe_get_data(cqe));
      const auto result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      if (!request) {
        clear_wake();
        continue;
      }
      window_.end(*request);
      if (result == -EAGAIN) {
        backoff_.refused(now_ns());
      } else {
        backoff_.accepted();
      }
      if (const auto error_number = io::account(*request, result)) {
        --queued_;
        ++ended;
        request->done(*request, *error_number);  // may destroy the request, may submit others
      } else {
        waiting_.push(*request);
      }
    }
    return ended;
  }

  // Whether wake() was called.
  bool clear_wake() {
    wake_armed_ = false;
    std::uint64_t count = 0;
    while (::read(wake_fd_, &count, sizeof count) < 0 && errno == EINTR) {
    }
    return count > 0;
  }

  const std::uint32_t depth_;
  io::IoWindow window_;
  const std::vector<int> files_;
  const int wake_fd_;
  io_uring ring_{};
  unsigned flags_;
  const Log log_;
  bool ring_open_ = false, enabled_ = false, files_registered_ = false, wake_armed_ = false;
  std::vector<iovec> buffers_;  // registered, by address
  io::IoBacklog waiting_;
  io::Backoff backoff_;
  std::size_t queued_ = 0;
};

}  // namespace

std::unique_ptr<IoEngine> make_uring_engine(const IoOptions& options, std::string& why) {
  return UringEngine::make(options, why);
}

}  // namespace terrace
