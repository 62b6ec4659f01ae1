// Blocks of a file on their way from the disk to a device or back, through a window of the device's host memory, as the engine
// moves chunks. Ways that end or begin in host memory leave the device out.
//
// Owner:   shares the file; the device is borrowed.
// Threads: one at a time, and after finish() another one: an I/O engine belongs to the thread that uses it.
// Errors:  Error of the disk or the device; then nothing is in flight, and the flow cannot be used again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/bench/disk/disk_file.h>
#include <terrace/bench/link/load.h>
#include <terrace/core/device/device.h>
#include <terrace/offload/io/io_engine.h>

namespace terrace::bench {

class DiskFlow {
 public:
  enum class Way : std::uint8_t { disk_to_host, disk_to_device, host_to_disk, device_to_disk };
  static constexpr std::uint64_t kBlockBytes = 4 * kMiB;
  static constexpr std::uint32_t kDepth = 16;  // requests to the disk in flight, and as many blocks in copies
  static constexpr std::uint64_t kLeastBlocks = 2;

  // Uses the blocks [first, first + blocks) of the file.
  DiskFlow(Device& device, std::shared_ptr<const DiskFile> file, Way way, std::uint64_t first, std::uint64_t blocks);
  ~DiskFlow();
  DiskFlow(const DiskFlow&) = delete;
  DiskFlow& operator=(const DiskFlow&) = delete;

  [[nodiscard]] std::uint64_t bytes() const { return blocks_ * kBlockBytes; }
  void pass();    // every block once
  void step();    // a few blocks more, over and over the file
  void finish();  // until nothing is in flight
  // Block i of a pass uses slot i modulo the slots, of the window and of the device's memory, which is null if it is left out.
  [[nodiscard]] std::span<std::byte> window() const { return {host_.data(), host_.bytes()}; }
  [[nodiscard]] std::byte* on_device() const { return on_device_.data(); }

 private:
  enum class At : std::uint8_t { nowhere, disk, link };
  struct Slot {
    IoRequest request;
    At at = At::nowhere;
    Event copied;
  };

  void go_on(std::uint64_t limit, std::uint64_t until);
  void advance(std::uint64_t limit, std::uint64_t until);
  void start(Slot& slot);
  void copy(Slot& slot);
  void copied(Slot& slot);
  void submit(Slot& slot);
  void ended(Slot& slot, int error_number);
  void arrive(Slot& slot);
  void let_go() noexcept;
  [[nodiscard]] bool reads() const { return way_ == Way::disk_to_host || way_ == Way::disk_to_device; }
  [[nodiscard]] bool has_device() const { return way_ == Way::disk_to_device || way_ == Way::device_to_disk; }

  const std::shared_ptr<const DiskFile> file_;
  const Way way_;
  const std::uint64_t first_, blocks_;
  std::vector<Slot> slots_;  // at most a slot for each block
  const Slab host_, on_device_;
  Device& device_;
  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<Stream> stream_;  // its callbacks wake the engine
  std::uint64_t next_ = 0, arrived_ = 0;
  int error_number_ = 0;
  bool ending_ = false;
};

const char* name_of(DiskFlow::Way way);  // "disk_to_device"
// A new file of random bytes, of at least DiskFlow::kLeastBlocks.
std::shared_ptr<const DiskFile> make_flow_file(Device& device, const std::filesystem::path& directory, std::uint64_t bytes);
Load flow_load(const std::shared_ptr<DiskFlow>& flow, const std::string& name);

}  // namespace terrace::bench
