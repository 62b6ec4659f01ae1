// Carries bytes between the tiers of one rank. Contains the memory of device and host, the store with its I/O engine, and the
// mover over all of them, in order of dependence. Residency, not this class, decides which bytes are in which tier.
//
// Owner:   an engine or a chunk manager; borrows the device. Whatever waits for the lanes must end before this.
// Threads: those of the mover.
// Errors:  those of the memory and of the I/O engine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <terrace/core/base/trace.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/move/lanes.h>
#include <terrace/offload/move/mover.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::offload {

class TierStack {
 public:
  // Allocates the device tier and the host tier; one of 0 bytes has no memory. `device_memory`: the caller's, in place of an
  // allocation, if it is not empty.
  TierStack(Device& device, std::uint64_t device_bytes, std::uint64_t host_bytes, std::span<std::byte> device_memory = {});

  struct Start {
    Trace* trace = nullptr;  // borrowed, may be null
    std::chrono::nanoseconds deadline = io::kIoDeadline;
    IoChoice io = {};
    // How much the drive of each file has at once. More gives a drive whose directions are separate more to do; an urgent read
    // then waits longer.
    std::uint64_t window_bytes = kStoreWindowBytes;
    std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  };
  // Called once, before the first move. `store` is the disk tier; null: there is none.
  void start(std::unique_ptr<ChunkStore> store, const Start& how);

  [[nodiscard]] std::byte* device_base() const { return device_memory_.data(); }
  [[nodiscard]] std::byte* host_base() const { return disk_->host_bytes.data(); }
  [[nodiscard]] ChunkStore* store() const { return disk_->store.get(); }
  [[nodiscard]] Mover& mover() { return *mover_; }
  [[nodiscard]] const Mover& mover() const { return *mover_; }
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }

 private:
  // Shared with the mover: the kernel may still use it after one of the mover's requests missed its deadline.
  struct Disk {
    std::shared_ptr<MemoryResource> host_memory;
    Slab host_bytes;
    std::unique_ptr<ChunkStore> store;
    std::unique_ptr<IoEngine> engine;
  };
  Device& device_;
  const std::shared_ptr<Disk> disk_ = std::make_shared<Disk>();
  Slab device_bytes_;  // empty if the memory is the caller's
  std::span<std::byte> device_memory_;
  const Lanes lanes_;
  std::optional<Mover> mover_;
};

}  // namespace terrace::offload
