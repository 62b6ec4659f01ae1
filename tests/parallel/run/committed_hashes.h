// Hashes of the committed weights, masters and moments, one for each kind, independent of the layout of the ranks.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/state/committed_state.h>

namespace terrace::test {

// [kind] is the hash of its elements in the order of the model's tensors. A part that several stores hold is read from the
// first of them. Packed state of an optimizer is left out, because it does not have one number for each element.
inline std::map<std::string, std::uint64_t> committed_hashes(const Model& model, const rules::Recipe& recipe,
                                                             std::span<const ChunkStore::Options> stores) {
  state::CommittedState state(stores);
  const StepMap whole(model, {.recipe = recipe, .shape = {{1, 1}, 1}});
  const auto& layout = whole.layout();
  std::map<std::string, std::uint64_t> hashes;
  for (const auto kind : recipe.kinds()) {
    const auto format = recipe.format_of(kind);
    if (kind == ChunkKind::gradient || rules::is_packed(format)) continue;
    std::uint64_t hash = 0;
    for (std::uint32_t l = 0; l < layout.layers(); ++l) {  // a layer is read as one chunk
      std::vector<TensorRange> tensors;
      std::uint64_t end = 0;
      for (std::uint32_t t = 0; t < layout.tensors_of(l); ++t) {
        const auto& place = layout.place(l, t);
        tensors.push_back({layout.param_at(l, t).name, 0, place.elements, place.first_element});
        end = std::max(end, place.first_element + place.elements);
      }
      const auto elements = round_up(end, memory::Layout::kPageElements);
      std::vector<std::byte> bytes(recipe.chunk_bytes(kind, elements));
      state.read({.chunk = {},
                  .kind = kind,
                  .dtype = std::string(name_of(format)),
                  .bytes = bytes.size(),
                  .ranges = tensors,
                  .label = fmt::format("{} of layer {}", name_of(kind), l)},
                 format, elements, bytes);
      hash = XXH64(bytes.data(), bytes.size(), hash);
    }
    hashes.emplace(name_of(kind), hash);
  }
  return hashes;
}

}  // namespace terrace::test
