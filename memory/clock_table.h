// Stores the clocks of chunks compactly: a clock names only a few lanes, and the table has numbers for those lanes only.
//
// Owner:   Residency. A Ref refers to one stored clock. It belongs to one holder, which must clear it before destroying it.
// Pure. Threads: the owner's.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include <terrace/memory/tier.h>

namespace terrace::memory {

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
    std::uint32_t first_ = 0;  // index in words_ of its first number; the numbers are in the order of lanes
  };

  // A clock and the set of lanes that it names, found once for all chunks that store this clock. It must not outlive the clock.
  struct Named {
    Named(const Clock& of);  // NOLINT(google-explicit-constructor): every clock converts
    Named(const Clock& of, std::uint32_t known_lanes) : clock(of), lanes(known_lanes) {}
    Named(const Clock& of, Lane only) : Named(of, 1U << index(only)) {}
    const Clock& clock;
    std::uint32_t lanes;
  };

  void set(Ref& ref, const Named& clock);
  void clear(Ref& ref);
  void merge(Ref& ref, const Named& other);
  void merge_into(Clock& clock, const Ref& ref) const;  // clock.merge(the clock of ref)
  [[nodiscard]] Clock of(const Ref& ref) const;
  [[nodiscard]] std::size_t words() const { return words_.size(); }

 private:
  static_assert(kLanes <= 32);
  void resize(Ref& ref, std::uint32_t lanes);  // afterwards its numbers are undefined

  std::vector<std::uint64_t> words_;
  std::array<std::vector<std::uint32_t>, kLanes + 1> free_;  // [n]: where n consecutive numbers are unused
};

}  // namespace terrace::memory
