// The three terraces of memory, their byte budgets, and the lanes on which work moves through them.
//
// Threads: values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace/core/base/units.h>

namespace terrace {

enum class Tier : std::uint8_t { device, host, disk };
inline constexpr std::size_t kTiers = 3;
inline constexpr std::array<Tier, kTiers> kAllTiers{Tier::device, Tier::host, Tier::disk};
constexpr std::size_t index(Tier t) { return static_cast<std::size_t>(t); }
constexpr std::string_view name_of(Tier t) {
  constexpr std::array<std::string_view, kTiers> names{"device", "host", "disk"};
  return names[index(t)];
}

template <class T>
struct PerTier : std::array<T, kTiers> {
  T& operator[](Tier t) { return std::array<T, kTiers>::operator[](index(t)); }
  const T& operator[](Tier t) const { return std::array<T, kTiers>::operator[](index(t)); }
};

// One byte budget per tier; kUnlimited means no cap, 0 means that the tier does not exist.
struct Budget {
  std::uint64_t device = kUnlimited, host = kUnlimited, disk = 0;
  bool commit_only = false;  // the disk only takes commits; nothing is evicted to it
  [[nodiscard]] std::uint64_t of(Tier t) const { return t == Tier::device ? device : t == Tier::host ? host : disk; }
};
// Rounds every budget down to whole pages. Chunks are whole pages, so the rest could hold nothing; and places that are taken
// from the high end then also begin at a page, as direct I/O demands.
constexpr Budget in_whole_pages(Budget b) {
  for (auto* const bytes : {&b.device, &b.host, &b.disk})
    if (*bytes != kUnlimited) *bytes -= *bytes % kPageBytes;
  return b;
}

// A lane is a FIFO of operations that complete in order. The n-th operation of a lane is done when its timeline has
// reached n (counting from 1), so "everything up to here" is one number per lane.
enum class Lane : std::uint8_t { compute, update, upload, download, read, write, communication, tensor, context, message };
// Ranks that exchange within every layer have a lane of their own, so that their collectives do not queue behind gathers for
// layers that come later: `tensor` for tensor ranks, `context` for context and expert ranks. `communication` has all other
// collectives.
inline constexpr std::array kCollectiveLanes{Lane::communication, Lane::tensor, Lane::context};
constexpr bool is_collective(Lane l) { return l >= Lane::communication && l < Lane::message; }
// From Lane::message on: messages between ranks of a pipeline, one lane for each direction, peer and payload.
inline constexpr std::size_t kPeerLanes = 16, kLanes = 9 + kPeerLanes;
constexpr std::size_t index(Lane l) { return static_cast<std::size_t>(l); }
constexpr bool is_message(Lane l) { return l >= Lane::message; }
constexpr std::string_view name_of(Lane l) {
  constexpr std::array<std::string_view, 10> names{"compute", "update",        "upload", "download", "read",
                                                   "write",   "communication", "tensor", "context",  "message"};
  return names[index(is_message(l) ? Lane::message : l)];
}

// A point in the partial order of a run: for each lane, how many of its operations must be done.
struct Clock {
  std::array<std::uint64_t, kLanes> at{};

  std::uint64_t& operator[](Lane l) { return at[index(l)]; }
  std::uint64_t operator[](Lane l) const { return at[index(l)]; }
  void merge(const Clock& other) {
    for (std::size_t i = 0; i < kLanes; ++i) at[i] = at[i] < other.at[i] ? other.at[i] : at[i];
  }
  static Clock after(Lane l, std::uint64_t sequence) {
    Clock c;
    c[l] = sequence;
    return c;
  }
  friend bool operator==(const Clock&, const Clock&) = default;
};

}  // namespace terrace
