#include <terrace/parallel/layers/attention.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/layers/embedding.h>
#include <terrace/parallel/layers/head.h>
#include <terrace/parallel/layers/mlp.h>
#include <terrace/parallel/layers/moe.h>
#include <terrace/parallel/layers/skip.h>
#include <terrace/parallel/layers/ulysses.h>

namespace terrace::layers {
namespace {

// Layer 0 is the embedding, block i the layers 2i + 1 and 2i + 2.
std::unique_ptr<TransformerLayer> attention(const Transformer& transformer, std::int64_t block) {
  std::unique_ptr<TransformerLayer> layer;
  if (transformer.context.ranks > 1)
    layer = std::make_unique<Ulysses>(transformer, block);
  else
    layer = std::make_unique<Attention>(transformer, block);
  const auto from = transformer.skips_from(block);
  if (from < 0) return layer;
  return std::make_unique<Skip>(transformer, block, static_cast<std::uint32_t>(2 * from + 2), std::move(layer));
}

}  // namespace

Model make_transformer(Transformer transformer) {
  checked(transformer);
  transformer.tensor.twins = transformer.tensor.ranks / transformer.kv_ways();
  Model model{.family = transformer.name,
              .dtype = transformer.dtype,
              .width = transformer.hidden,
              .layers = {},
              .tensor = transformer.tensor,
              .context = transformer.context};
  model.layers.push_back(std::make_unique<Embedding>(transformer));
  for (std::int64_t block = 0; block < transformer.layers; ++block) {
    model.layers.push_back(attention(transformer, block));
    if (transformer.experts.count > 0)
      model.layers.push_back(std::make_unique<Moe>(transformer, block));
    else
      model.layers.push_back(std::make_unique<Mlp>(transformer, block));
  }
  model.layers.push_back(std::make_unique<Head>(transformer));
  return model;
}

}  // namespace terrace::layers
