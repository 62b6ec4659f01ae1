// The offload layer for other trainers: chunks in three tiers, prefetch, acquire, release.
//
//   ChunkManager manager({.device_bytes = 64 * kMiB, .host_bytes = 128 * kMiB, .nvme_paths = {"/nvme"}, .nvme_bytes = kGiB});
//   ChunkId c = manager.add(16 * kMiB);
//   { Lease lease = manager.acquire(c, Tier::device, Access::overwrite); fill(lease.bytes(0)); }
//   manager.prefetch(c, Tier::device);
//   { Lease lease = manager.acquire(c, Tier::device, Access::read); use(lease.bytes(0)); }
//
// With OffloadOptions::store the disk tier lasts: chunks with a name are committed together, all or nothing, and a later
// process finds them again, as of the last commit.
//
// Owner:   main. Leases must end before the manager does.
// Threads: any; one mutex guards residency and is never held across a copy, an I/O or a wait. acquire() blocks until the bytes
//          have arrived, and until other leases end if they hold the room or use the chunk (many readers or one writer). It is
//          all or nothing: while it waits it holds nothing. A thread that holds a lease must not acquire the same chunk for
//          writing, nor more bytes than fit beside its leases: it would wait for itself.
// Errors:  DoesNotFit if no release could ever make room; Error from the mover (chunk, tier, file, offset, errno); Error with
//          ErrorKind::refused for invalid options; std::logic_error for unknown chunks, uses and sizes.
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

#include <terrace/core/device/device.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/io/io_choice.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/store/chunk_store.h>

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
  // A disk tier that lasts: the folder of its store, or a name in each of nvme_paths. If the folder has a commit, the manager
  // continues from it, else it begins anew. A chunk with a name then takes twice its bytes of nvme_bytes. Empty: the disk tier
  // is a temporary file.
  std::filesystem::path store = {};
  // The device whose memory is the device tier, for example make_cuda_device(); borrowed. Kernels that use a lease's bytes must
  // end before the lease does. Null: the manager makes a CPU device with `threads` threads (0: all cores).
  Device* device = nullptr;
  int threads = 0;
  // Which engine reads and writes the disk tier. Its log gets all warnings, also those of the manager's own device.
  IoChoice io = {};
  std::chrono::nanoseconds io_deadline = io::kIoDeadline;  // for every call on the disk tier's files; 0: none
  // Tests inject faults here. Null: the kernel's.
  std::shared_ptr<io::FileOps> file_ops = {};
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
};

class ChunkManager {
 public:
  explicit ChunkManager(const OffloadOptions& options);
  ~ChunkManager();
  ChunkId add(std::uint64_t bytes);
  // A chunk that lasts. If the last commit has one of this name, with the same size, it has that content; else it has none.
  ChunkId add(const std::string& name, std::uint64_t bytes);
  [[nodiscard]] bool has_content(ChunkId chunk) const;
  void prefetch(ChunkId chunk, Tier tier);  // a hint; never blocks
  Lease acquire(ChunkId chunk, Tier tier, Access access);
  Lease acquire(std::span<const Use> uses, Tier tier);
  void drop(ChunkId chunk);
  void flush();  // returns when all content is valid on disk (needs a disk tier)
  // Makes the content of all chunks with a name durable, all or nothing, together with `payload`: a little text of the caller's
  // own, such as JSON with the data position. No chunk with a name may be leased for writing meanwhile (std::logic_error); the
  // moves of other threads wait until it returns. After a failed commit nothing more can be written: open the store again.
  void commit(std::uint64_t step, const std::string& payload);
  [[nodiscard]] std::optional<Commit> last_commit() const;  // none: a new store, or no store
  [[nodiscard]] memory::Traffic traffic() const;
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;

 private:
  friend class Lease;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
