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
// On a GPU, a stream waits instead of the caller, and the lease ends when the work of the stream has ended:
//
//   { Lease lease = manager.acquire(c, Tier::device, Access::update, {.stream = &stream}); launch(stream, lease.bytes()); }
//
// A loop that marks its passes need not prefetch: its order is recorded in the first pass, and chunks are then prefetched and
// evicted by it. An order that changes costs moves, never a result, and is learned again.
//
// Owner:   main. Leases must end before the manager does; its destructor waits for their streams and events. A stream must
//          outlive its leases.
// Threads: any; one mutex guards residency and is never held across a copy, an I/O or a wait. acquire() blocks until the bytes
//          have arrived (without a stream), and until other leases end if they hold the room or use the chunk (many readers or
//          one writer). It is all or nothing: while it waits it holds nothing. A thread that holds a lease must not acquire the
//          same chunk for writing, nor more bytes than fit beside its leases: it would wait for itself.
// Errors:  DoesNotFit if no release could ever make room; Error from the mover (chunk, tier, file, offset, errno); Error with
//          ErrorKind::refused for invalid options, with ErrorKind::interrupted if the caller stopped the call; std::logic_error
//          for unknown chunks, uses and sizes. An acquire() that fails or is stopped leases nothing; chunks that were to be
//          overwritten may have lost their content. try_acquire() returns all of them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/device/device.h>
#include <terrace/memory/chunk.h>
#include <terrace/memory/residency.h>
#include <terrace/offload/io/io_choice.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace {

class ChunkManager;

// The right to use bytes, with an end. Move-only. Dropping it never cancels I/O. Its end does not wait: what later moves the
// chunk, or takes its room, waits for the stream or the event. (Only if 20 other streams or events have not come to the ends of
// their leases, it waits for one of them.)
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept;
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { release(); }
  void release();  // as release_after() the stream of acquire(); without one, the bytes are not used any more
  void release_after(Stream& stream);   // when everything submitted to the stream so far has ended
  void release(const Event& last_use);  // when the event is done; `Event()`: now
  [[nodiscard]] std::span<std::byte> bytes(std::size_t i = 0) const;
  [[nodiscard]] std::size_t size() const { return spans_.size(); }

 private:
  friend class ChunkManager;
  ChunkManager* manager_ = nullptr;
  Tier tier_ = Tier::device;
  std::vector<Use> uses_;
  std::vector<std::span<std::byte>> spans_;
  Stream* stream_ = nullptr;
  Clock arrival_;  // of the bytes, if the stream waits for them
  void end(const Clock& last_use);
};

struct AcquireOptions {
  // Null: the call returns when the bytes have arrived. A stream: it returns when their moves are issued, and what is submitted
  // to the stream afterwards waits for them. A stream of Device::make_stream() waits for disk and copies by itself. An adopted
  // stream (Device::adopt_stream()) cannot wait for a copy that is not issued yet: the call blocks while bytes come from the
  // disk, and only copies are outstanding when it returns. If a move fails, the stream fails: its later events rethrow the
  // error.
  Stream* stream = nullptr;
  std::stop_token stop = {};  // ends a call that blocks
};

// A lease, or why there is none.
struct Acquired {
  Lease lease = {};
  std::optional<Error> error = {};
  [[nodiscard]] explicit operator bool() const { return !error; }
};

struct OffloadOptions {
  std::uint64_t device_bytes = 0, host_bytes = 0;
  std::vector<std::filesystem::path> nvme_paths = {};  // none: no disk tier
  std::uint64_t nvme_bytes = 0;
  // A disk tier that lasts: the folder of its store, or a name in each of nvme_paths. If the folder has a commit, the manager
  // continues from it, else it begins anew. A chunk with a name then takes twice its bytes of nvme_bytes. Empty: the disk tier
  // is a temporary file.
  std::filesystem::path store = {};
  // The device whose memory is the device tier, for example make_cuda_device(), or your own; borrowed. Null: the manager makes
  // a CPU device with `threads` threads (0: all cores).
  Device* device = nullptr;
  int threads = 0;
  // Which engine reads and writes the disk tier. Its log gets all warnings, also those of the manager's own device.
  IoChoice io = {};
  std::chrono::nanoseconds io_deadline = io::kIoDeadline;  // for every call on the disk tier's files; 0: none
  // Tests inject faults here. Null: the kernel's.
  std::shared_ptr<io::FileOps> file_ops = {};
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  // The caller's memory on `device` as the device tier, instead of an allocation; borrowed. Of it device_bytes (0: all).
  std::span<std::byte> device_memory = {};
  // How many coming requests are prefetched once the order of a loop is known. Each takes the room of chunks that could stay.
  std::uint64_t ahead_requests = 2;
};

class ChunkManager {
 public:
  explicit ChunkManager(const OffloadOptions& options);
  ~ChunkManager();
  ChunkId add(std::uint64_t bytes, const std::string& label = {});  // errors have the label
  // A chunk that lasts. If the last commit has one of this name, with the same size, it has that content; else it has none.
  ChunkId add(const std::string& name, std::uint64_t bytes);
  [[nodiscard]] bool has_content(ChunkId chunk) const;
  void remove(ChunkId chunk);                       // a later add() of this size may return the same id
  void resize(ChunkId chunk, std::uint64_t bytes);  // drops the content; waits for moves from and to the disk
  void prefetch(ChunkId chunk, Tier tier);          // a hint; never blocks
  Lease acquire(ChunkId chunk, Tier tier, Access access, const AcquireOptions& options = {});
  Lease acquire(std::span<const Use> uses, Tier tier, const AcquireOptions& options = {});
  Acquired try_acquire(std::span<const Use> uses, Tier tier, const AcquireOptions& options = {}) noexcept;
  void drop(ChunkId chunk);
  // One pass over a loop: the requests between the two calls, on any thread. Loops with different orders have different names.
  // A pass that is begun again without an end is not learned.
  void begin_pass(const std::string& loop = {});
  void end_pass();
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
