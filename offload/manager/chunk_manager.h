// The offload layer for other trainers: chunks in three tiers, prefetch, acquire, release.
//
//   ChunkManager manager({.device_bytes = 64 * kMiB, .host_bytes = 128 * kMiB, .nvme_paths = {"/nvme"}, .nvme_bytes = kGiB});
//   ChunkId c = manager.add(16 * kMiB);
//   { Lease lease = manager.acquire(c, Tier::device, Access::overwrite); fill(lease.bytes(0)); }
//   manager.prefetch(c, Tier::device);
//   { Lease lease = manager.acquire(c, Tier::device, Access::read); use(lease.bytes(0)); }
//
// Owner:   main. Leases must end before the manager does.
// Threads: any; one mutex guards residency and is never held across a copy, an I/O or a wait. acquire() blocks until the bytes
//          have arrived, and until other leases end if they hold the room or use the chunk (many readers or one writer). It is
//          all or nothing: while it waits it holds nothing. A thread that holds a lease must not acquire the same chunk for
//          writing, nor more bytes than fit beside its leases: it would wait for itself.
// Errors:  DoesNotFit if no release could ever make room; Error from the mover (chunk, tier, file, offset, errno); Error with
//          ErrorKind::refused for invalid options; std::logic_error for unknown chunks, uses and sizes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/io/io_choice.h>

namespace terrace {

class ChunkManager;

// The right to use bytes, with an end. Move-only. Dropping it never cancels I/O.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { release(); }
  void release();
  [[nodiscard]] std::span<std::byte> bytes(std::size_t i = 0) const;
  [[nodiscard]] std::size_t size() const { return spans_.size(); }

 private:
  friend class ChunkManager;
  ChunkManager* manager_ = nullptr;
  Tier tier_ = Tier::device;
  std::vector<Use> uses_;
  std::vector<std::span<std::byte>> spans_;
};

struct OffloadOptions {
  std::uint64_t device_bytes = 0, host_bytes = 0;
  std::vector<std::filesystem::path> nvme_paths = {};  // none: no disk tier
  std::uint64_t nvme_bytes = 0;
  // The device whose memory is the device tier, for example make_cuda_device(); borrowed. Kernels that use a lease's bytes must
  // end before the lease does. Null: the manager makes a CPU device with `threads` threads (0: all cores).
  Device* device = nullptr;
  int threads = 0;
  // Which engine reads and writes the disk tier. Its log gets all warnings, also those of the manager's own device.
  IoChoice io = {};
};

class ChunkManager {
 public:
  explicit ChunkManager(const OffloadOptions& options);
  ~ChunkManager();
  ChunkId add(std::uint64_t bytes);
  void prefetch(ChunkId chunk, Tier tier);  // a hint; never blocks
  Lease acquire(ChunkId chunk, Tier tier, Access access);
  Lease acquire(std::span<const Use> uses, Tier tier);
  void drop(ChunkId chunk);
  void flush();  // returns when all content is valid on disk (needs a disk tier)
  [[nodiscard]] memory::Traffic traffic() const;
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;

 private:
  friend class Lease;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
