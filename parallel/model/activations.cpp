#include <terrace/parallel/model/activations.h>

#include <algorithm>
#include <numeric>

namespace terrace {
namespace {

// Of what is computed again: the forward up to the last phase that saves a tensor.
double recomputed_flops(const Layer& layer, const LayerFacts& facts, const BatchShape& shape) {
  const auto steps = layer.described(LayerCall::forward, shape);
  double flops = 0, until_saved = 0;
  for (const auto& phase : steps.phases()) {
    flops += phase.undivided ? facts.forward_flops : phase.flops;
    if (phase.undivided || (phase.saved && writes(*phase.saved))) until_saved = flops;
  }
  return until_saved;
}

}  // namespace

std::vector<LayerActivations> choose_activations(const Model& model, const BatchShape& shape, std::uint32_t recompute,
                                                 std::uint32_t offload) {
  const auto layers = static_cast<std::uint32_t>(model.layers.size());
  std::vector<double> bytes_a_flop(layers, 0);
  for (std::uint32_t l = 0; l < layers; ++l) {
    double bytes = 0;
    const auto facts = model.layers[l]->facts(shape);
    for (const auto& tensor : facts.saved) bytes += static_cast<double>(tensor.bytes());
    bytes_a_flop[l] = bytes / std::max(1.0, recomputed_flops(*model.layers[l], facts, shape));
  }
  std::vector<std::uint32_t> order(layers);
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t l) { return bytes_a_flop[l]; });

  std::vector<LayerActivations> each(layers);
  for (std::uint32_t i = 0; i < std::min(recompute, layers); ++i) each[order[i]].recompute = true;
  for (std::uint32_t l = 0; l < std::min(offload, layers); ++l) each[l].offload = true;
  return each;
}

std::uint32_t recomputing(const std::vector<LayerActivations>& each) {
  return static_cast<std::uint32_t>(std::ranges::count(each, true, &LayerActivations::recompute));
}

std::uint32_t offloading(const std::vector<LayerActivations>& each) {
  return static_cast<std::uint32_t>(std::ranges::count(each, true, &LayerActivations::offload));
}

}  // namespace terrace
