// How a layer keeps its activations from its forward to its backward: in place, offloaded or recomputed.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/parallel/model/layer.h>

namespace terrace {

// A layer's input is kept if its backward reads it. The other tensors that its forward saves can be recomputed. Kept tensors
// stay on the device while there is room; with `offload` they go to the host, and from there to the disk, right after the
// forward.
struct LayerActivations {
  bool recompute = false;
  bool offload = false;
  friend bool operator==(const LayerActivations&, const LayerActivations&) = default;
};

inline constexpr std::uint32_t kAllLayers = ~0U;
// `recompute`: the number of layers that recompute; those that free the most bytes per FLOP that is computed again are taken,
// on a tie the earlier one. `offload`: the number of layers that offload; the first ones are taken, because their backward
// comes last.
std::vector<LayerActivations> choose_activations(const Model& model, const BatchShape& shape, std::uint32_t recompute,
                                                 std::uint32_t offload);

// How many of the layers recompute, and how many offload.
std::uint32_t recomputing(const std::vector<LayerActivations>& each);
std::uint32_t offloading(const std::vector<LayerActivations>& each);

}  // namespace terrace
