// Asynchronous reads and writes of page-aligned spans.
//
// Owner:   one engine belongs to one mover (or benchmark thread); requests belong to the caller and must stay at their address
//          until `done` has run.
// Threads: submit() and poll() from the owning thread only; `done` runs inside poll(); wake() from any thread.
// Errors:  every request ends exactly once: error_number 0 after all its bytes moved, or the first errno (ENODATA: the file
//          ended before the request). The engine resubmits short I/O, retries EINTR at once and EAGAIN after a growing pause.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/offload/io/io_choice.h>

namespace terrace {

struct IoRequest {
  enum class Op : std::uint8_t { read, write };
  Op op = Op::read;
  int file = 0;                 // index into the engine's files
  std::uint64_t offset = 0;     // in the file; a page multiple
  std::byte* buffer = nullptr;  // page-aligned
  std::uint64_t bytes = 0;      // a page multiple
  std::function<void(IoRequest&, int error_number)> done;
  // Requests beyond the depth limit start in this order of priority, first come first served within each; none waits forever.
  enum class Priority : std::uint8_t { demand, prefetch, write_back } priority = Priority::prefetch;

  std::uint64_t moved_bytes = 0;  // from here on: private to the engine
  int error_number = 0;
  IoRequest* next = nullptr;
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;                                  // requires that nothing is in flight
  virtual void submit(std::span<IoRequest* const> requests) = 0;  // queued beyond the depth limit, never refused
  virtual std::size_t poll(std::chrono::nanoseconds wait) = 0;    // returns how many ended; returns early after wake()
  virtual void wake() = 0;
  [[nodiscard]] virtual std::size_t in_flight() const = 0;  // queued ones included
  [[nodiscard]] virtual std::string name() const = 0;       // "uring", "threads", "simulated"
};

struct IoOptions {
  std::uint32_t queue_depth = 32;
  // Limit on the bytes that io_uring gives to the device at once: a drive shares its time among all its requests, so urgent
  // ones would wait for the others. Two requests of any size are always given, so that the drive never idles between them.
  std::uint64_t window_bytes = ~std::uint64_t{0};
  std::vector<int> files;                     // open descriptors, borrowed
  std::vector<std::span<std::byte>> buffers;  // memory that requests will use, registered where permitted
  bool kernel_submits = false;  // io_uring's SQPOLL: a kernel thread submits requests, at the cost of most of a core
  bool device_polls = false;    // io_uring's IOPOLL: a wait polls the drive instead of sleeping, at the same cost
  IoChoice choice = {};         // for make_io_engine()
};

// With this window for each file of a store, drives reach their full rate.
inline constexpr std::uint64_t kStoreWindowBytes = 4 * kMiB;

// io_uring; nullptr with `why` if the kernel or a seccomp filter forbids it. If registration of buffers or files is refused,
// they are used unregistered, with one warning each that says how to allow it.
std::unique_ptr<IoEngine> make_uring_engine(const IoOptions& options, std::string& why);
// pread/pwrite on `threads` threads.
std::unique_ptr<IoEngine> make_thread_engine(const IoOptions& options, int threads = 4);
// For an engine with files opened without O_DIRECT: starts their write-out at once and drops the pages read or written from the
// page cache, so that the cache does not take memory that the budgets gave to other uses. A failed write-out fails the write
// that is just ending, and every later write to that file; fsync reports the failure of a write-out that is still running at
// the end. `write_out` is sync_file_range(), unless a test replaces it.
using WriteOut = std::function<int(int file, off_t offset, off_t bytes, unsigned flags)>;
std::unique_ptr<IoEngine> make_uncached_engine(std::unique_ptr<IoEngine> inner, const std::vector<int>& files,
                                               WriteOut write_out = {});
// The engine of `options.choice`; wrapped in make_uncached_engine() for buffered files. RefusedSetting if there is no such
// engine.
std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options);

}  // namespace terrace
