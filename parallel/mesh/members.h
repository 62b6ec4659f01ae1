// The ranks that take part in a collective, as seen from one of them.
//
// Threads: values.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include <terrace/memory/tier.h>
#include <terrace/parallel/mesh/mesh.h>

namespace terrace::mesh {

// The ranks that differ from this one on these axes only.
struct Members {
  AxisSet axes = {};
  bool in_turn = false;  // in the order in which micro-batches are folded (Mesh::turn), else by rank
  // In an order in two directions: the two pipeline ranks that hold a stage. The members are the data ranks of both, those of
  // the first one first.
  std::optional<std::array<std::uint32_t, 2>> directions = {};
  // The lane of their collectives. A communicator belongs to one lane, so that all ranks run its calls in the same order.
  Lane lane = Lane::communication;
  friend auto operator<=>(const Members&, const Members&) = default;
};
std::string to_string(const Members& members);

// Ranks that exchange something within every layer, on a lane of their own.
inline constexpr Members kTensorRanks{.axes = kTensorAxes, .lane = Lane::tensor};
inline constexpr Members kContextRanks{.axes = Axis::context, .lane = Lane::context};
inline constexpr Members kExpertRanks{.axes = Axis::expert, .lane = Lane::context};

}  // namespace terrace::mesh
