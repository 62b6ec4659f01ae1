// One thread of a disk benchmark: keeps the queue of its engine full from the first block of its part to the last, or for a
// given time.
//
// Between start() and the end, nothing is copied, and nothing is allocated but the counters of a new second: requests, buffers
// and order are allocated before, and all requests that become free during one poll are submitted together.
//
// Owner:   the disk job; only the worker uses its engine and buffers. Threads: run() on the thread that owns the engine.
// Errors:  Error with the operation, the offset and errno; Error(ErrorKind::corrupt) if data differ from what was written.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/disk/pattern.h>
#include <terrace/bench/disk/time_axis.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {

enum class DiskOp : std::uint8_t { read, write, randread, mixed };
enum class DiskCheck : std::uint8_t { one_stamp, every_byte };  // what is checked of each block that was read

// The blocks of one worker, and how it goes through them.
struct DiskPart {
  DiskOp op = DiskOp::read;
  DiskCheck check = DiskCheck::one_stamp;
  std::uint64_t block_bytes = 0;
  std::uint64_t first_block = 0, blocks = 0;
  std::uint64_t turns = 0;  // how many blocks are moved; after the last one of the part follows the first again. 0: each once
  std::int64_t for_ns = 0;  // more than 0: requests are started for this long, whatever `turns` is
  std::uint32_t queue_depth = 1;
  std::uint32_t generation = 0;          // of the bytes that are written
  std::span<std::uint32_t> generations;  // by page of the file; updated as blocks are written
  std::uint64_t seed = 0;                // of the random order
};

// The size of a buffer that can serve a block at any page: the random bytes are arranged so that every page finds its own.
std::uint64_t slot_bytes(std::uint64_t block_bytes);

class DiskWorker {
 public:
  // `buffers`: slot_bytes() for each of queue_depth requests, filled with the pattern.
  DiskWorker(IoEngine& engine, const Pattern& pattern, const DiskPart& part, std::span<std::byte> buffers);
  DiskWorker(const DiskWorker&) = delete;
  DiskWorker& operator=(const DiskWorker&) = delete;

  // Moves the blocks of its part; ends early, with nothing in flight, when `stop` is set. Adds the moved bytes to
  // `moved_bytes`. `begin_ns`: when the time of the pass began (now_ns()).
  void run(const std::atomic<bool>& stop, std::atomic<std::uint64_t>& moved_bytes, std::int64_t begin_ns);
  [[nodiscard]] const TimeAxis& axis() const { return axis_; }
  [[nodiscard]] std::uint64_t ended_blocks() const { return ended_; }

 private:
  struct Slot {
    IoRequest request;
    std::byte* buffer = nullptr;
    std::uint64_t block = 0;
    std::int64_t submitted_ns = 0;
  };
  [[nodiscard]] std::uint64_t block_at(std::uint64_t turn) const;
  void prepare(Slot& slot, std::uint64_t block);
  [[nodiscard]] bool more() const;
  void submit_idle(bool stopped);
  void ended(Slot& slot, int error_number);
  void check_read(const Slot& slot);

  IoEngine& engine_;
  const Pattern& pattern_;
  const DiskPart part_;
  const std::uint64_t block_pages_;
  std::vector<std::uint32_t> order_;  // for random reads; empty: ascending
  std::vector<Slot> slots_;
  std::vector<Slot*> idle_;
  std::vector<IoRequest*> batch_;
  TimeAxis axis_;
  std::int64_t begin_ns_ = 0;
  std::uint64_t begun_ = 0, ended_ = 0;
  std::string wrong_;  // the first failure; after it, no more requests are started
  bool corrupt_ = false;
};

}  // namespace terrace::bench
