// Chunks of one size on a disk, moved as in training; for comparison, the I/O engine alone moves the same bytes.
//
// Two files of a shared disk, or two places in one file, can differ in speed by more than the difference to be measured, so
// both use the same places. The store does not know about the engine's own writes: they must write the bytes that are already
// there, or a later read reports a wrong checksum.
//
// Owner:   a benchmark; the caller owns the window of host memory, which must outlive this.
// Threads: one.
// Errors:  those of the store, the engine and the lanes; Error for a failed request of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>

#include <terrace/core/device/device.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/move/lanes.h>
#include <terrace/offload/move/mover.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace::bench {

class StoredChunks {
 public:
  static constexpr std::uint64_t kRequestBytes = 4ULL << 20;  // both sides move in requests of this size; divides a chunk
  static constexpr std::uint32_t kQueueDepth = 32;

  // The kind of chunk c is kinds[c modulo their number].
  StoredChunks(const std::filesystem::path& directory, std::uint64_t count, std::span<const ChunkKind> kinds,
               std::uint64_t chunk_bytes, std::span<std::byte> window, Device& device);

  // Moves bytes between the chunk's place on the disk and an offset of the window, once the clock `after` has been reached.
  // Returns the clock that is reached when the move has ended.
  Clock move(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, const Clock& after);
  void drain() { mover_->drain(); }
  [[nodiscard]] const offload::Lanes& lanes() const { return lanes_; }

  // Appends the same move as requests to the engine alone. They run in order; the queue is kept full.
  using Requests = std::deque<IoRequest>;
  void append_bare(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, Requests& requests) const;
  void run_bare(Requests& requests);

 private:
  // The place of the chunk in the store's flat space.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t chunk) const { return chunk * chunk_bytes_; }

  const std::uint64_t chunk_bytes_;
  const std::span<std::byte> window_;
  std::array<std::uint64_t, kLanes> sequence_{};
  const offload::Lanes lanes_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<IoEngine> moving_engine_, bare_engine_;
  std::unique_ptr<offload::Mover> mover_;  // last: it uses all of the above
};

}  // namespace terrace::bench
