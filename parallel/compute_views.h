// Views of an action's chunks as tensors, activations and ranges.
//
// Owner:   compute*.cpp, during one Compute::enqueue(). Borrows the map. Threads: the rank thread. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <terrace/parallel/compute.h>

namespace terrace {

class Compute::Views {
 public:
  Views(const StepMap& map, std::span<const Use> uses, std::span<const std::uint64_t> offsets, std::byte* base) : map_(map) {
    for (std::size_t i = 0; i < uses.size(); ++i) at_.emplace(index(uses[i].chunk), base + offsets[i]);
  }
  [[nodiscard]] std::byte* of(ChunkId chunk) const {
    const auto at = at_.find(index(chunk));
    return at == at_.end() ? nullptr : at->second;
  }
  // A declared parameter's weight, or the place where its backward writes the gradient; contiguous within its run.
  [[nodiscard]] TensorView tensor(Kind kind, std::uint32_t layer, std::uint32_t param, std::uint32_t copy = 0) const {
    const auto home = map_.layout().home(layer, param);
    const auto& recipe = map_.options().recipe;
    const auto dtype = kind == Kind::gradient ? recipe.gradient : recipe.compute;
    const auto& shape = map_.layout().params(layer)[param].shape;
    const auto run = kind == Kind::parameter ? map_.weights(home.layer, copy)
                     : home.layer == layer   ? map_.gradients(layer)
                                             : map_.tied_gradients();
    const auto& place = map_.layout().place(home.layer, home.tensor);
    return {of(run) + place.first_element * size_of(dtype), dtype, shape};
  }
  [[nodiscard]] std::vector<TensorView> tensors(Kind kind, std::uint32_t layer, std::uint32_t copy = 0) const {
    std::vector<TensorView> views;
    for (std::uint32_t p = 0; p < map_.layout().params(layer).size(); ++p) views.push_back(tensor(kind, layer, p, copy));
    return views;
  }
  [[nodiscard]] TensorView activation(ChunkId chunk) const {
    auto* data = of(chunk);
    if (!data) return {};
    return {data, map_.model().dtype, {map_.options().shape.batch.tokens(), map_.model().width}};
  }
  [[nodiscard]] TensorView survey() const {
    const auto& spec = *map_.buffers().survey_spec();
    return {of(map_.buffers().survey()), spec.dtype, {map_.tensor().ranks, spec.shape.elements()}};
  }
  // A range of a chunk, as a vector.
  [[nodiscard]] TensorView range(ChunkId chunk, DType dtype, std::uint64_t first, std::uint64_t elements) const {
    return {of(chunk) + first * size_of(dtype), dtype, {static_cast<std::int64_t>(elements)}};
  }

 private:
  const StepMap& map_;
  std::unordered_map<std::uint32_t, std::byte*> at_;
};

}  // namespace terrace
