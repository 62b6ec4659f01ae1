#include <terrace/parallel/program/layer_set.h>

#include <algorithm>

namespace terrace {

constexpr std::uint32_t kNeededAtOnce = 3;

LayerSet deferred_layers(std::uint32_t layers, std::uint32_t count) {
  if (count >= layers) return LayerSet::all();
  std::vector<bool> deferred(layers);
  const std::uint64_t first = std::min(kNeededAtOnce, layers - 1), spread = layers - first;
  const auto among = std::min<std::uint64_t>(count, spread);
  for (std::uint64_t i = 0; i < spread; ++i)  // from the last layer on, as the backward comes to them
    deferred[layers - 1 - i] = (i + 1) * among / spread > i * among / spread;
  for (auto l = first; l > first - (count - among); --l) deferred[l - 1] = true;
  return LayerSet(std::move(deferred));
}

LayerSet early_layers(std::uint32_t layers, std::uint32_t count) {
  return deferred_layers(layers, layers - std::min(layers, count)).others();
}

}  // namespace terrace
