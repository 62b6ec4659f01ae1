#include <terrace/parallel/layers/attention/attention.h>
#include <terrace/parallel/layers/attention/ring_attention.h>
#include <terrace/parallel/layers/attention/two_rings.h>
#include <terrace/parallel/layers/attention/ulysses.h>
#include <terrace/parallel/layers/attention/ulysses_ring.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/layers/ends/embedding.h>
#include <terrace/parallel/layers/ends/head.h>
#include <terrace/parallel/layers/mlp/mlp.h>
#include <terrace/parallel/layers/mlp/moe.h>

namespace terrace::layers {
namespace {

std::unique_ptr<TransformerLayer> attention(const Transformer& transformer, std::int64_t block) {
  const auto& context = transformer.context();
  if (context.ranks == 1) return std::make_unique<Attention>(transformer, block);
  if (context.two_rings) return std::make_unique<TwoRings>(transformer, block);
  if (context.ring == 1) return std::make_unique<Ulysses>(transformer, block);
  if (context.ring == context.ranks) return std::make_unique<RingAttention>(transformer, block);
  return std::make_unique<UlyssesRing>(transformer, block);
}

std::unique_ptr<TransformerLayer> mlp(const Transformer& transformer, std::int64_t block) {
  if (transformer.experts.count > 0) return std::make_unique<Moe>(transformer, block);
  return std::make_unique<Mlp>(transformer, block);
}

}  // namespace

Model make_transformer(Transformer transformer) {
  checked(transformer);
  auto& place = transformer.place;
  place.zigzag = place.ring > 1 && !place.two_rings && transformer.window.is_usual();
  Model model{
      .family = transformer.name, .dtype = transformer.dtype, .width = transformer.hidden, .layers = {}, .place = place};
  model.layers.push_back(std::make_unique<Embedding>(transformer));
  for (std::int64_t block = 0; block < transformer.layers; ++block) {
    model.layers.push_back(attention(transformer, block));
    model.layers.push_back(mlp(transformer, block));
  }
  model.layers.push_back(std::make_unique<Head>(transformer));
  return model;
}

}  // namespace terrace::layers
