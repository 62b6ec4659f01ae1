// Timed passes over the benchmark's file: threads, engines and buffers of one shape.
//
// Owner:   the bench; file, content and buffers are borrowed. Threads: one thread calls; run() starts its own threads and joins
//          them.
// Errors:  that of the first worker that failed; when it is thrown, nothing is in flight and no thread is left.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/disk/disk_worker.h>
#include <terrace/bench/disk/pattern.h>

namespace terrace::bench {

struct DiskShape {
  std::uint64_t block_bytes = 0;
  std::uint32_t queue_depth = 1;  // for each thread
  std::uint32_t threads = 1;
  std::string engine = "auto";  // uring, threads, auto
  bool sync = false;            // a pass that writes ends only when the data are on the disk

  [[nodiscard]] std::uint64_t buffer_bytes() const { return threads * queue_depth * slot_bytes(block_bytes); }
};

// The current content of the file: the generation in which each page was last written.
struct DiskContent {
  // `least_block_bytes` must divide every block size used on the file.
  DiskContent(std::uint64_t seed, std::uint64_t bytes, std::uint64_t least_block_bytes)
      : pattern(seed, stamp_pages(least_block_bytes)), generations(bytes / kPageBytes) {}
  Pattern pattern;
  std::vector<std::uint32_t> generations;
  std::uint32_t generation = 0;
};

// What a pass does, and for how long.
struct DiskPass {
  // Called about ten times a second on run()'s thread, with the bytes moved and the seconds since the start; returns false to
  // stop.
  using Watch = std::function<bool(std::uint64_t moved_bytes, double seconds)>;
  DiskOp op = DiskOp::read;
  DiskCheck check = DiskCheck::one_stamp;
  Watch watch = [](std::uint64_t, double) { return true; };
  std::uint64_t blocks = 0;          // to move, over and over the file; 0: every whole block of the file once
  double seconds = 0;                // more than 0: requests are started for this long instead
  std::function<void()> ready = {};  // called when all is prepared, just before the clock starts
};

struct DiskRun {
  bool whole = false;  // false: stopped before the end; the figures cover only a part
  double seconds = 0, cpu_s = 0;
  std::uint64_t bytes = 0, blocks = 0;
  TimeAxis axis;
};

class DiskJob {
 public:
  using Wrap = std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)>;  // tests put an engine around another one
  // `buffers`: at least shape.buffer_bytes(), page-aligned.
  DiskJob(const DiskFile& file, DiskContent& content, const DiskShape& shape, std::span<std::byte> buffers,
          const Wrap& wrap = {});

  // An incomplete block at the end of the file is left alone.
  DiskRun run(const DiskPass& pass);
  [[nodiscard]] const std::string& engine_name() const { return engine_name_; }
  [[nodiscard]] std::uint64_t blocks() const { return blocks_; }

 private:
  [[nodiscard]] std::span<std::byte> buffers_of(std::uint32_t thread) const;
  std::unique_ptr<IoEngine> make_engine(std::uint32_t thread);
  [[nodiscard]] DiskPart part_of(std::uint32_t thread, const DiskPass& pass);

  const DiskFile& file_;
  DiskContent& content_;
  const DiskShape shape_;
  const std::span<std::byte> buffers_;
  const Wrap wrap_;
  const std::uint64_t blocks_;
  std::string engine_name_;
};

}  // namespace terrace::bench
