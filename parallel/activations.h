// What becomes of a layer's activations between its forward and its backward.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/layer.h>

namespace terrace {

// The input of a layer is kept if its backward reads it. What its forward saves beside that may be computed again; whatever is
// kept stays on the device as long as there is room, or goes to the host, and from there to the disk, right behind the forward.
struct LayerActivations {
  bool recompute = false;
  bool offload = false;
  friend bool operator==(const LayerActivations&, const LayerActivations&) = default;
};

inline constexpr std::uint32_t kAllLayers = ~0U;
// So many layers compute again: first those that free most bytes for their FLOPs, of equals the earlier ones. So many offload:
// the first ones, whose backward is the longest away.
std::vector<LayerActivations> choose_activations(const Model& model, const BatchShape& shape, std::uint32_t recompute,
                                                 std::uint32_t offload);

// How many of the layers do.
std::uint32_t recomputing(const std::vector<LayerActivations>& each);
std::uint32_t offloading(const std::vector<LayerActivations>& each);

}  // namespace terrace
