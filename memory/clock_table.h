// The clocks of chunks, in few bytes: a clock names a few of the lanes, and the table holds the numbers of these alone.
//
// Owner:   Residency. A Ref is the place of one clock; it belongs to one holder, which clears it before it is forgotten.
// Pure. Threads: the owner's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <terrace/memory/tier.h>

namespace terrace {

class ClockTable {
 public:
  class Ref {
   public:
    Ref() = default;  // the clock that names no lane
    Ref(const Ref&) = delete;
    Ref& operator=(const Ref&) = delete;
    Ref(Ref&&) = default;  // for vectors that grow
    Ref& operator=(Ref&&) = delete;

   private:
    friend class ClockTable;
    std::uint32_t lanes_ = 0;  // bit l: the clock names lane l
    std::uint32_t first_ = 0;  // of its numbers in words_, in the order of lanes
  };

  // A clock with the lanes that it names, found once for all the chunks that take it. It must not outlive the clock.
  struct Named {
    Named(const Clock& of);  // NOLINT(google-explicit-constructor): any clock is one
    const Clock& clock;
    std::uint32_t lanes;
  };

  void set(Ref& ref, const Named& clock);
  void clear(Ref& ref);
  void merge(Ref& ref, const Named& other);
  void merge_into(Clock& clock, const Ref& ref) const;  // clock.merge(what ref is)
  [[nodiscard]] Clock of(const Ref& ref) const;
  [[nodiscard]] std::size_t words() const { return words_.size(); }

 private:
  static_assert(kLanes <= 32);
  void resize(Ref& ref, std::uint32_t lanes);  // its numbers are then undefined

  std::vector<std::uint64_t> words_;
  std::array<std::vector<std::uint32_t>, kLanes + 1> free_;  // [n]: where n numbers in a row are unused
};

}  // namespace terrace
