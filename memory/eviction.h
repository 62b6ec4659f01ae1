// Who leaves when a tier is full.
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

namespace terrace {

// Of what may leave a tier: all of it, or what takes no place in another one, because all its content is valid there already.
enum class Leaving : std::uint8_t { any, free };
inline constexpr std::size_t kLeavings = 2;

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual void used(ChunkId chunk, Tier tier) = 0;
  // One of `evictable` (never empty); the order of the span carries no meaning and must not change the answer.
  virtual ChunkId victim(Tier tier, std::span<const ChunkId> evictable) = 0;
  // Whether prefetching `incoming` is worth losing `victim` from the tier.
  virtual bool worth(Tier tier, ChunkId incoming, ChunkId victim) = 0;
  // victim() among those of `evictable` that are admitted; none when none is. Many questions are asked of nearly the same
  // chunks: a policy that is told who joins and leaves them may keep them in its order.
  virtual std::optional<ChunkId> victim_among(Tier tier, Leaving leaving, std::span<const ChunkId> evictable,
                                              const std::function<bool(ChunkId)>& admits);
  virtual void may_leave(ChunkId, Tier, Leaving, bool /*evictable*/) {}
};

// Timing-free order of last use, for dynamic leases. A prefetch never evicts.
class Lru : public EvictionPolicy {
 public:
  void used(ChunkId chunk, Tier tier) override;
  ChunkId victim(Tier tier, std::span<const ChunkId> evictable) override;
  bool worth(Tier tier, ChunkId incoming, ChunkId victim) override;

 private:
  std::uint64_t tick_ = 0;
  std::vector<PerTier<std::uint64_t>> last_;
};

// Farthest next use (Belady 1966) from a program's use index. Positions are action numbers of the current program; after
// its end the program is taken to repeat (the steady state of training), so a chunk not used later in this program has
// its next use at its first position plus the program's length; a chunk never used is farthest of all.
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
  std::optional<ChunkId> victim_among(Tier tier, Leaving leaving, std::span<const ChunkId> evictable,
                                      const std::function<bool(ChunkId)>& admits) override;
  void may_leave(ChunkId chunk, Tier tier, Leaving leaving, bool evictable) override;
  [[nodiscard]] std::uint64_t next_use(Tier tier, ChunkId chunk) const;

 private:
  // The evictable chunks of a tier by their next use, brought up to date when it is asked for: a chunk that was pinned and let
  // go again in between costs nothing.
  struct Place {
    std::uint64_t next = 0;  // under which it stands in the order
    bool evictable = false, ordered = false, changed = false;
  };
  struct Farther {  // the last one is the victim: of the farthest, the lowest id
    bool operator()(const std::pair<std::uint64_t, ChunkId>& a, const std::pair<std::uint64_t, ChunkId>& b) const {
      return a.first != b.first ? a.first < b.first : b.second < a.second;
    }
  };
  struct Index {
    std::vector<Place> places;  // by chunk
    std::vector<ChunkId> changed;
    std::set<std::pair<std::uint64_t, ChunkId>, Farther> order;
  };
  void refresh(Tier tier, Index& index);
  void reorder();  // all next uses are others

  std::uint64_t position_ = 0, length_ = 0;
  PerTier<std::vector<std::vector<std::uint64_t>>> uses_;  // by chunk: ascending positions
  // The last answer of next_use(). It holds until the position passes it, so that a scan over thousands of candidates is
  // one load each; an answer of 0 is always searched anew.
  mutable PerTier<std::vector<std::uint64_t>> answer_;
  std::array<PerTier<Index>, kLeavings> index_;
};

}  // namespace terrace
