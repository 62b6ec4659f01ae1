// The address space of one tier: which byte ranges are reserved, and which operations last touched each range. A range can be
// reserved again before its last user has finished: the new occupant waits for the clock that reserve() returns.
//
// Pure: no memory, no threads. Owner: Residency, one per tier.
// Errors:  reserve() returns nullopt if no hole is large enough; the caller evicts and calls again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/memory/tier.h>

namespace terrace::memory {

// State fills a space from its low end, activations from its high end, so that their different lifetimes cause no fragments.
enum class End : std::uint8_t { low, high };

struct Range {
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// The free ranges of a tier, ascending and coalesced. A value: try a placement on a copy.
class Holes {
 public:
  explicit Holes(std::uint64_t capacity_bytes);
  // First fit, searching from `end`: takes the lowest bytes of the hole for End::low, the highest ones for End::high.
  std::optional<std::uint64_t> take(std::uint64_t bytes, End end);
  bool take_at(Range range);  // false if a part of it is not free
  // Returns the bytes of the hole that the range is now part of. std::logic_error if a part of it is free already.
  std::uint64_t give(Range range);
  [[nodiscard]] bool has(std::uint64_t bytes) const;  // whether some hole is at least this large
  [[nodiscard]] std::uint64_t largest() const;
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

class Space {
 public:
  explicit Space(std::uint64_t capacity_bytes);  // kUnlimited: grows as needed, at the low end only

  struct Reserved {
    Range range;
    Clock after;  // do not touch the range before this
  };
  std::optional<Reserved> reserve(std::uint64_t bytes, End end);
  std::optional<Reserved> reserve_at(Range range);  // nullopt if a part of it is not free
  // The range may be a part of what was reserved: the chunks of a run are freed one by one, each with its own clock.
  void free(Range range, const Clock& last_use);

  [[nodiscard]] std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] std::uint64_t extent_bytes() const { return extent_bytes_; }  // the highest end so far: what to allocate
  [[nodiscard]] std::uint64_t largest_hole() const { return holes_.largest(); }
  [[nodiscard]] const Holes& holes() const { return holes_; }
  void check() const;  // throws std::logic_error when an invariant is broken

 private:
  Reserved taken(Range range);                                                // `range` has just left the holes
  void note(std::uint64_t offset, std::uint64_t end, const Clock& last_use);  // in touched_

  std::uint64_t capacity_bytes_;
  std::uint64_t reserved_bytes_ = 0, peak_bytes_ = 0, extent_bytes_ = 0;
  Holes holes_;
  // Free ranges by offset → (end, last use). Neighbours are never merged: a new occupant waits for its own bytes only.
  std::map<std::uint64_t, std::pair<std::uint64_t, Clock>> touched_;
  std::vector<decltype(touched_)::node_type> spare_;  // of entries that are gone: allocating them anew took time
};

}  // namespace terrace::memory
