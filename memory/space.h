// The address space of one tier: which byte ranges are reserved, and which operations last touched each range, so that
// a range can be promised again before its last user is done: the new occupant waits for the clock it is given.
//
// Pure: no memory, no threads. Owner: Residency, one a tier.
// Errors:  reserve() gives nothing when no hole is large enough; the caller evicts and asks again.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/memory/tier.h>

namespace terrace {

// State fills a space from its low end, activations from its high end: two kinds of lifetime, no fragments between them.
enum class End : std::uint8_t { low, high };

struct Range {
  std::uint64_t offset = 0, bytes = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// The free ranges of a tier, ascending and coalesced. A value: a what-if is tried on a copy.
class Holes {
 public:
  explicit Holes(std::uint64_t capacity_bytes);
  // First fit from the low end, or from the high end the topmost bytes of the first fit downwards.
  std::optional<std::uint64_t> take(std::uint64_t bytes, End end);
  void give(Range range);  // std::logic_error when a part of it is free already
  [[nodiscard]] std::uint64_t largest() const;
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

class Space {
 public:
  explicit Space(std::uint64_t capacity_bytes);  // kUnlimited: grows at need, from the low end only

  struct Reserved {
    Range range;
    Clock after;  // do not touch the range before this
  };
  std::optional<Reserved> reserve(std::uint64_t bytes, End end);
  // The range may be a part of what was reserved: the chunks of a run are given back one by one, each with its own clock.
  void free(Range range, const Clock& last_use);

  [[nodiscard]] std::uint64_t reserved_bytes() const { return reserved_bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }
  [[nodiscard]] std::uint64_t extent_bytes() const { return extent_bytes_; }  // highest address ever promised: what to allocate
  [[nodiscard]] std::uint64_t largest_hole() const { return holes_.largest(); }
  [[nodiscard]] const Holes& holes() const { return holes_; }
  void check() const;  // throws std::logic_error when an invariant is broken

 private:
  std::uint64_t capacity_bytes_;
  std::uint64_t reserved_bytes_ = 0, peak_bytes_ = 0, extent_bytes_ = 0;
  Holes holes_;
  // Free ranges by offset → (end, last use). Neighbours are never merged: a new occupant waits for its own bytes only.
  std::map<std::uint64_t, std::pair<std::uint64_t, Clock>> touched_;
};

}  // namespace terrace
