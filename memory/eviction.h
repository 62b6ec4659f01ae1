// Which chunk a full tier evicts.
//
// Owner:   the caller; must outlive the Residency that borrows it. Threads: under residency's mutex.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include <terrace/memory/chunk.h>

namespace terrace::memory {

// Which evictable chunks may leave: any, or only those that are free to evict because all their content is valid elsewhere.
enum class Leaving : std::uint8_t { any, free };
inline constexpr std::size_t kLeavings = 2;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void used(ChunkId chunk, Tier tier) = 0;
  // Returns one of `evictable` (never empty); the order of the span must not change the answer.
  virtual ChunkId victim(Tier tier, std::span<const ChunkId> evictable) = 0;
  // Whether prefetching `incoming` is worth losing `victim` from the tier.
  virtual bool worth(Tier tier, ChunkId incoming, ChunkId victim) = 0;
  // Offers the evictable chunks to `wants_more`, the best victim first, until it answers false. Successive calls see nearly
  // the same chunks, so a policy may keep them sorted: may_leave() reports every chunk that becomes evictable or stops being
  // so.
  virtual void offer_victims(Tier tier, Leaving leaving, std::span<const ChunkId> evictable,
                             const std::function<bool(ChunkId)>& wants_more);
  virtual void may_leave(ChunkId, Tier, Leaving, bool /*evictable*/) {}
};

// Least recently used, by the order of calls, not by time; for dynamic leases. A prefetch never evicts.
class Lru : public EvictionPolicy {
 public:
  void used(ChunkId chunk, Tier tier) override;
  ChunkId victim(Tier tier, std::span<const ChunkId> evictable) override;
  bool worth(Tier tier, ChunkId incoming, ChunkId victim) override;

 private:
  std::uint64_t tick_ = 0;
  std::vector<PerTier<std::uint64_t>> last_;
};

// Farthest next use (Belady 1966) from a program's use index. Positions are action numbers of the current program. The
// program is assumed to repeat (the steady state of training): a chunk not used later in it has its next use at its first
// position plus the program's length. A chunk that is never used is farthest of all.
// The device's next use is the next device use; the host's is the next use on the host or on the device.
class Belady : public EvictionPolicy {
 public:
  struct UseAt {
    ChunkId chunk{};
    Tier tier{};
    std::uint64_t position = 0;
  };
  void set_program(std::span<const UseAt> uses, std::uint64_t length);  // uses sorted by position
  void set_position(std::uint64_t position);
  void used(ChunkId, Tier) override {}
  ChunkId victim(Tier tier, std::span<const ChunkId> evictable) override;  // ties: the lowest id
  bool worth(Tier tier, ChunkId incoming, ChunkId victim) override;
  void offer_victims(Tier tier, Leaving leaving, std::span<const ChunkId> evictable,
                     const std::function<bool(ChunkId)>& wants_more) override;
  void may_leave(ChunkId chunk, Tier tier, Leaving leaving, bool evictable) override;
  [[nodiscard]] std::uint64_t next_use(Tier tier, ChunkId chunk) const;

 private:
  // The evictable chunks of a tier, sorted by next use. Updated only when queried: a chunk that was pinned and unpinned in
  // between costs nothing.
  struct Place {
    std::uint64_t next = 0;  // its key in `order`
    bool evictable = false, ordered = false, changed = false;
  };
  struct Farther {  // the victim comes last: of the farthest chunks, the lowest id
    bool operator()(const std::pair<std::uint64_t, ChunkId>& a, const std::pair<std::uint64_t, ChunkId>& b) const {
      return a.first != b.first ? a.first < b.first : b.second < a.second;
    }
  };
  struct Index {
    std::vector<Place> places;  // by chunk
    std::vector<ChunkId> changed;
    std::set<std::pair<std::uint64_t, ChunkId>, Farther> order;
    std::vector<decltype(order)::node_type> spare;  // nodes that are used again: allocating them took time
  };
  void refresh(Tier tier, Index& index);
  void reorder();  // when all next uses have changed

  std::uint64_t position_ = 0, length_ = 0;
  PerTier<std::vector<std::vector<std::uint64_t>>> uses_;  // by chunk: ascending positions
  // Cache of next_use(). An answer is valid until the position passes it, so a scan over thousands of candidates is one load
  // each; an answer of 0 is always searched again.
  mutable PerTier<std::vector<std::uint64_t>> answer_;
  std::array<PerTier<Index>, kLeavings> index_;
};

}  // namespace terrace::memory
