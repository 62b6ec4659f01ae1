// Asynchronous reads and writes of page-aligned spans.
//
// Owner:   one engine belongs to one mover (or benchmark thread); requests belong to the caller and must stay at their address
//          until `done` has run.
// Threads: submit() and poll() from the owning thread only; `done` runs inside poll(); wake() from any thread.
// Errors:  every request ends exactly once: error_number 0 after all its bytes moved, or the first errno (ENODATA: the file
//          ended before the request). Short I/O is resubmitted inside. EINTR is retried at once, EAGAIN after a pause that
//          grows.
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

#include <terrace/core/units.h>

namespace terrace {

struct IoRequest {
  enum class Op : std::uint8_t { read, write };
  Op op = Op::read;
  int file = 0;                 // index into the engine's files
  std::uint64_t offset = 0;     // in the file; a page multiple
  std::byte* buffer = nullptr;  // page-aligned
  std::uint64_t bytes = 0;      // a page multiple
  std::function<void(IoRequest&, int error_number)> done;
  // What waits beyond the depth limit starts in this order, first come first served within each; none waits for ever.
  enum class Priority : std::uint8_t { demand, prefetch, write_back } priority = Priority::prefetch;

  std::uint64_t moved_bytes = 0;  // the engine's own bookkeeping from here on
  IoRequest* next = nullptr;
};

class IoEngine {
 public:
  virtual ~IoEngine() = default;                                  // requires that nothing is in flight
  virtual void submit(std::span<IoRequest* const> requests) = 0;  // queued beyond the depth limit, never refused
  virtual std::size_t poll(std::chrono::nanoseconds wait) = 0;    // how many ended; returns early after wake()
  virtual void wake() = 0;
  [[nodiscard]] virtual std::size_t in_flight() const = 0;  // queued ones included
  [[nodiscard]] virtual std::string name() const = 0;       // "uring", "threads", "simulated"
};

struct IoOptions {
  std::uint32_t queue_depth = 32;
  // With the device at once, of io_uring: a drive deals its time out to all that it was given, so that what is urgent waits for
  // what is not. Two requests are there at least, whatever their size, and the drive never idles between them.
  std::uint64_t window_bytes = ~std::uint64_t{0};
  std::vector<int> files;                     // open descriptors, borrowed
  std::vector<std::span<std::byte>> buffers;  // memory that requests will use, registered where permitted
  bool kernel_submits = false;  // io_uring's SQPOLL: a kernel thread takes requests, at the price of most of a core
  bool device_polls = false;  // io_uring's IOPOLL: a wait asks the drive again and again instead of sleeping, at the same price
};

// A window in which drives reach their rate, for each file of a store.
inline constexpr std::uint64_t kStoreWindowBytes = 4 * kMiB;

// io_uring; nullptr with `why` filled when the kernel or a seccomp filter forbids it. Unregistered buffers or files are used,
// with one warning each that says how to mend it, when registration is refused.
std::unique_ptr<IoEngine> make_uring_engine(const IoOptions& options, std::string& why);
// pread/pwrite on `threads` threads.
std::unique_ptr<IoEngine> make_thread_engine(const IoOptions& options, int threads = 4);
// Over files some of which were opened without O_DIRECT: starts their write-out at once and drops what was read or written from
// the page cache, so that it does not grow into memory that the budgets gave to others. A write-out that fails ends the write
// that is just ending, and every later one to its file; one that is still under way at the end is told by fsync.
// `write_out` is sync_file_range(), unless a test has another one.
using WriteOut = std::function<int(int file, off_t offset, off_t bytes, unsigned flags)>;
std::unique_ptr<IoEngine> make_uncached_engine(std::unique_ptr<IoEngine> inner, const std::vector<int>& files,
                                               WriteOut write_out = {});
// io_uring where it works, else the thread pool with one warning; uncached where a file is buffered.
// TERRACE_IO_ENGINE=threads|uring|uring-sqpoll|uring-iopoll forces one.
std::unique_ptr<IoEngine> make_io_engine(const IoOptions& options);

// In memory, seeded: random delays (in polls), reordering, short transfers, and faults at chosen requests. `durable` is what a
// power loss would leave: writes reach it only at sync().
struct SimulatedFault {
  std::uint64_t at_request = 0;  // counts from 0
  enum class What : std::uint8_t {
    error,
    short_transfer,
    zero_length,
    flip_bit,
    stale,
    misdirected,
    torn,
    never
  } what = What::error;
  int error_number = 5;
  std::optional<IoRequest::Op> only = {};  // counts these only: how reads and writes alternate depends on timing
};
class SimulatedDisk;  // shared by engines over a "power loss"
std::shared_ptr<SimulatedDisk> make_simulated_disk(int files, std::uint64_t bytes_each);
std::unique_ptr<IoEngine> make_simulated_engine(std::shared_ptr<SimulatedDisk> disk, std::uint64_t seed,
                                                std::vector<SimulatedFault> faults = {});

}  // namespace terrace
