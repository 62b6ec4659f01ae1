// A set of a model's layers, and the layers whose updates are deferred.
//
// Pure. Threads: values. Errors: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace terrace {

class LayerSet {
 public:
  LayerSet() = default;  // none
  explicit LayerSet(std::vector<bool> layers) : layers_(std::move(layers)) {}
  static LayerSet all() { return LayerSet().others(); }
  [[nodiscard]] LayerSet others() const {
    auto set = *this;
    set.layers_.flip();
    set.further_ = !further_;
    return set;
  }
  [[nodiscard]] bool empty() const { return !further_ && std::ranges::find(layers_, true) == layers_.end(); }
  [[nodiscard]] bool contains(std::uint32_t layer) const { return layer < layers_.size() ? layers_[layer] : further_; }
  friend bool operator==(const LayerSet&, const LayerSet&) = default;

 private:
  std::vector<bool> layers_;
  bool further_ = false;  // of layers beyond those
};

// The layers whose updates wait for the next step's forward, if `count` of `layers` do. A processor that updates more slowly
// than the backward brings gradients falls behind by one layer again and again. It then passes one over: of the two whose
// gradients it has, the deeper one, which is needed later. So these layers are spread evenly over the model, but the first
// ones are taken last, because the next forward would wait for them at once.
LayerSet deferred_layers(std::uint32_t layers, std::uint32_t count);
// The layers that are updated early, if `count` of `layers` are: those that are not deferred.
LayerSet early_layers(std::uint32_t layers, std::uint32_t count);

}  // namespace terrace
