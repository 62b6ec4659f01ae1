// Tensors that a forward saves and its backward fetches, in the host and disk tiers of a ChunkManager, within its budgets: what
// a trainer needs that recomputes none of its activations.
//
//   Activations activations(manager);
//   auto saved = activations.offload(x, &stream);   // what the stream does later may overwrite x
//   activations.fetch(saved, x_again, &stream);     // what the stream does later may read x_again
//   saved = {};                                     // the bytes are dropped; they are not read again
//
// The last tensor is expected first: each fetch() prefetches what was offloaded just before it. Another order costs moves,
// never a result. Chunks are used again, so steps that save the same sizes take no more chunks and no more disk than the first.
// Nothing here is ever committed.
//
// Owner:   the caller. Handles end before this, this before the manager, and a stream after its last call here.
// Threads: any; a handle belongs to one thread at a time. Each piece of a tensor is leased alone, so threads wait for each
//          other's copies, not for each other's tensors. The caller's own leases on the host must leave room for one piece.
// Errors:  those of ChunkManager::acquire(): memory::DoesNotFit names the tier, its budget and the missing bytes; a failed
//          stream or move is rethrown. A failed offload() saves nothing; after a failed fetch() the handle is still valid.
//          std::logic_error for an empty handle, or a target of another size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include <terrace/core/base/units.h>
#include <terrace/offload/manager/chunk_manager.h>

namespace terrace {

struct ActivationsOptions {
  std::uint64_t piece_bytes = 4 * kMiB;  // a larger tensor is cut into pieces of so many bytes; the host must hold one
  int ahead_pieces = 2;                  // how many a fetch prefetches
};

class Activations {
 public:
  explicit Activations(ChunkManager& manager, const ActivationsOptions& options = {});

  // The right to fetch a tensor. Move-only; its end drops the bytes.
  class Saved {
   public:
    Saved() = default;
    Saved(Saved&& other) noexcept { *this = std::move(other); }
    Saved& operator=(Saved&& other) noexcept;
    ~Saved() { drop(); }
    [[nodiscard]] std::uint64_t bytes() const { return bytes_; }

   private:
    friend class Activations;
    void drop() noexcept;
    Activations* owner_ = nullptr;
    std::uint64_t first_ = 0, pieces_ = 0, bytes_ = 0;
  };

  // Copies bytes of the host or of the manager's device, in the order of the stream. Null: now, from the host.
  Saved offload(std::span<const std::byte> bytes, Stream* stream = nullptr);
  // Copies a tensor back. `to` may be the bytes of a lease.
  void fetch(const Saved& saved, std::span<std::byte> to, Stream* stream = nullptr);

 private:
  ChunkId chunk_of(std::uint64_t piece);
  void prefetch_before(std::uint64_t piece);
  void copy_piece(std::uint64_t piece, Access access, Stream* stream, std::span<std::byte> to, std::span<const std::byte> from);

  ChunkManager& manager_;
  const ActivationsOptions options_;
  std::mutex mutex_;                         // guards the members below
  std::map<std::uint64_t, ChunkId> pieces_;  // that are saved, by number, in the order of offloading
  std::uint64_t next_ = 0;
};

}  // namespace terrace
