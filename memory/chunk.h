// The units that residency moves.
//
// A chunk is a page-aligned span with a fixed number of elements of one kind of state, or one activation buffer. A run is a row
// of chunks whose bytes must be contiguous on the device, because a layer reads its weights as one span.
#pragma once

#include <cstdint>
#include <string_view>

#include <terrace/memory/tier.h>

namespace terrace {

enum class ChunkId : std::uint32_t {};
constexpr std::uint32_t index(ChunkId c) { return static_cast<std::uint32_t>(c); }
enum class RunId : std::uint32_t {};
constexpr std::uint32_t index(RunId r) { return static_cast<std::uint32_t>(r); }

// What a chunk holds; state kinds of the same index cover the same elements.
enum class ChunkKind : std::uint8_t { parameter, gradient, master, first_moment, second_moment, activation };
inline constexpr std::size_t kChunkKinds = 6;
constexpr std::string_view name_of(ChunkKind k) {
  constexpr std::string_view names[kChunkKinds] = {"parameter",    "gradient",      "master weight",
                                                   "first moment", "second moment", "activation"};
  return names[static_cast<std::size_t>(k)];
}

enum class Access : std::uint8_t {
  read,       // the bytes are needed and do not change
  overwrite,  // the bytes are not needed and will all be written
  update,     // the bytes are needed and will be changed
};
constexpr bool writes(Access a) { return a != Access::read; }
constexpr bool needs_content(Access a) { return a != Access::overwrite; }

struct Use {
  ChunkId chunk{};
  Access access = Access::read;
};

// Moves one chunk over one edge. Moves are decided in program order; a move runs once the clock `after` has been reached.
struct Move {
  ChunkId chunk{};
  Tier from{}, to{};
  std::uint64_t from_offset = 0, to_offset = 0, bytes = 0;
  std::uint64_t sequence = 0;  // the move's number on lane_of(from, to), counting from 1
  Clock after;
};
constexpr Lane lane_of(Tier from, Tier to) {
  if (from == Tier::disk) return Lane::read;
  if (to == Tier::disk) return Lane::write;
  return to == Tier::device ? Lane::upload : Lane::download;
}

}  // namespace terrace
