#include <fmt/format.h>

#include <terrace/core/base/error.h>
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

// Tensor ranks that hold the same key-value heads are twins: the engine adds their gradients.
void demand_twins(const Transformer& transformer) {
  const auto tensor = transformer.tensor();
  const auto twins = tensor.is_grid() ? 1 : tensor.ranks / transformer.kv_ways();
  if (tensor.twins != twins)
    throw Error(
        fmt::format("model: {} tensor ranks have {} key-value heads: their mesh needs part {} and twin {}, not part {} "
                    "and twin {} (mesh_of() of degrees.h makes it)",
                    tensor.ranks, transformer.kv_heads, tensor.ranks / twins, twins, transformer.place.mesh.part, tensor.twins),
        ErrorKind::refused);
}

}  // namespace

Model make_transformer(Transformer transformer) {
  checked(transformer);
  demand_twins(transformer);
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

ModelShape shape_of(const Transformer& t) {
  return {.layers = 2 * t.layers + 2,
          .heads = t.heads,
          .ffn = t.ffn,
          .seq_len = t.seq_len,
          .experts = t.experts.count,
          .kv_heads = t.kv_heads,
          .hidden = t.hidden};
}

}  // namespace terrace::layers
