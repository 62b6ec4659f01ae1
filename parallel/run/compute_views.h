// Views of an action's chunks as tensors, activations and ranges.
//
// Owner:   compute*.cpp, during one Compute::enqueue(). Borrows the map. Threads: the rank thread. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include <terrace/parallel/model/param_tiles.h>
#include <terrace/parallel/run/compute.h>

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
  [[nodiscard]] TensorView tensor(ChunkKind kind, std::uint32_t layer, const PhaseParam& of_phase,
                                  std::uint32_t copy = 0) const {
    const auto& layout = map_.layout();
    const auto home = layout.home(layer, of_phase.param, of_phase.tile);
    const auto& place = layout.place_of(home);
    const auto& recipe = map_.options().recipe;
    const auto dtype = kind == ChunkKind::gradient ? recipe.gradient : recipe.compute;
    const auto& param = layout.params(layer)[of_phase.param];
    const auto shape = model::tile_shape(param, of_phase.tile);
    const auto& run = layout.run_of(place);
    const auto first =
        kind == ChunkKind::parameter ? map_.weights_at(home.layer, run, copy) : map_.gradients_at(layer, home.layer, run);
    return {of(first) + layout.place_in_run(place) * size_of(dtype), dtype, shape};
  }
  // In the order of the layer's parameters; parameters that the phase does not use have empty views.
  [[nodiscard]] std::vector<TensorView> tensors(ChunkKind kind, const Action& a) const {
    const auto& phase = map_.phases().phase(a);
    std::vector<TensorView> views(map_.layout().params(a.layer).size());
    for (const auto& p : kind == ChunkKind::gradient ? phase.gradients : phase.weights)
      views[p.param] = tensor(kind, a.layer, p, kind == ChunkKind::gradient ? 0 : a.copy);
    return views;
  }
  [[nodiscard]] TensorView activation(ChunkId chunk) const {
    auto* data = of(chunk);
    if (!data) return {};
    return {data, map_.model().dtype, {map_.buffers().rows(), map_.model().width}};
  }
  // In the order of the call's work(); tensors that the phase does not use have empty views.
  [[nodiscard]] std::vector<TensorView> work(const Action& a) const {
    std::vector<TensorView> views;
    for (const auto& spec : map_.buffers().work_tensors(a.layer, mapping::call_of(a.op))) {
      auto* const data = of(map_.buffers().work(a.layer, mapping::call_of(a.op), static_cast<std::uint32_t>(views.size())));
      views.push_back(data ? TensorView{data, spec.dtype, spec.shape} : TensorView{});
    }
    return views;
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
