// One path that is measured: the benchmark's file there, what the file holds, and memory for its requests.
//
// Owner:   the bench. Threads: one at a time; several targets may run at once.
// Errors:  those of DiskFile and DiskJob.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <terrace/bench/disk/block_device.h>
#include <terrace/bench/disk/disk_job.h>

namespace terrace::bench {

class DiskTarget {
 public:
  struct Settings {
    std::uint64_t bytes = 0;  // of the file; whole pages
    std::uint64_t seed = 1;
    std::uint64_t least_block_bytes = 0;  // divides the blocks of all shapes
    std::string engine = "auto";
    DiskJob::Wrap wrap = {};
  };
  DiskTarget(const std::filesystem::path& path, const Settings& settings);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const DiskFile& file() const { return file_; }
  [[nodiscard]] const BlockDevice& device() const { return device_; }

  // Memory for the requests of the passes that follow; the caller owns it.
  void use(std::span<std::byte> buffers) { buffers_ = buffers; }
  // What shapes of up to `shape_bytes` need, and the untimed passes.
  [[nodiscard]] std::uint64_t needed_bytes(std::uint64_t shape_bytes) const;
  DiskRun run(const DiskShape& shape, const DiskPass& pass);

  // Everything is written before anything is measured: a read of unwritten blocks does not reach the disk, and a first write
  // also makes the file system update its metadata.
  DiskRun fill(const DiskPass::Watch& watch);
  // Writes so many bytes in order, over and over the file, so that the disk's own cache is full and its free blocks are used
  // up.
  DiskRun precondition(std::uint64_t bytes, const DiskPass::Watch& watch, const std::function<void()>& ready);
  DiskRun verify(const DiskPass::Watch& watch);  // every byte of the file; not timed
  [[nodiscard]] DiskShape plain_shape() const;   // of these three

 private:
  const std::filesystem::path path_;
  const DiskJob::Wrap wrap_;
  const std::string engine_;
  const DiskFile file_;
  const BlockDevice device_;
  DiskContent content_;
  std::span<std::byte> buffers_;
};

}  // namespace terrace::bench
