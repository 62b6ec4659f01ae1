// Chunks of one size on a disk, moved as in training, and in comparison the same bytes moved by the I/O engine alone.
//
// Two files of a shared disk, and two places of one file, can differ in speed by more than the compared difference, so both use
// the same places. The store does not know about the engine's own writes: they must write the bytes that are already there, or
// a later read reports a wrong checksum.
//
// Owner:   a benchmark; the window of host memory is the caller's and outlives this.
// Threads: one.
// Errors:  those of the store, the engine and the lanes; Error for a failed request of the engine.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>

#include <terrace/core/device.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/io_engine.h>
#include <terrace/offload/lanes.h>
#include <terrace/offload/mover.h>

namespace terrace::bench {

class StoredChunks {
 public:
  static constexpr std::uint64_t kRequestBytes = 4ULL << 20;  // what both cut their moves into; chunks are a multiple of it
  static constexpr std::uint32_t kQueueDepth = 32;

  // Chunk c is of kind c modulo the number of kinds.
  StoredChunks(const std::filesystem::path& directory, std::uint64_t count, std::span<const Kind> kinds,
               std::uint64_t chunk_bytes, std::span<std::byte> window, Device& device);

  // Between the chunk's place on the disk and an offset of the window, once `after` has passed. Returns the clock that passes
  // with its end.
  Clock move(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, const Clock& after);
  void drain() { mover_->drain(); }
  [[nodiscard]] const Lanes& lanes() const { return lanes_; }

  // The same move as requests of the engine's alone, appended; they run in their order, a queue full of them at a time.
  using Requests = std::deque<IoRequest>;
  void append_bare(IoRequest::Op op, std::uint64_t chunk, std::uint64_t window_offset, Requests& requests) const;
  void run_bare(Requests& requests);

 private:
  // Of the flat space.
  [[nodiscard]] std::uint64_t place_of(std::uint64_t chunk) const { return chunk * chunk_bytes_; }

  const std::uint64_t chunk_bytes_;
  const std::span<std::byte> window_;
  std::array<std::uint64_t, kLanes> sequence_{};
  const Lanes lanes_;
  std::unique_ptr<ChunkStore> store_;
  std::unique_ptr<IoEngine> moving_engine_, bare_engine_;
  std::unique_ptr<Mover> mover_;  // last: it uses all of the above
};

}  // namespace terrace::bench
