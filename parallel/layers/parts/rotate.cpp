#include <terrace/parallel/layers/parts/rotate.h>

#include <terrace/parallel/layers/parts/views.h>

namespace terrace::layers {

void rotate_heads(LayerContext& ctx, const Transformer& config, std::int64_t block, TensorView qkv, std::int64_t first_position,
                  bool inverse) {
  const auto dim = config.head_dim(), rotated = config.rotated(block), rows = qkv.shape[0], row = qkv.shape[1];
  const auto heads = config.heads_here() + config.kv_heads_here();
  if (rotated == 0) return;
  const auto turn = [&](const TensorView& some) {
    ctx.math.rotary(ctx.stream, some, row, ctx.shape.seq, first_position, config.rotary(block), inverse);
  };
  if (rotated == dim) return turn(part(qkv, 0, {rows, heads, dim}));
  // Each head separately, because the elements that are not rotated lie between those of two heads.
  for (std::int64_t head = 0; head < heads; ++head) turn(part(qkv, head * dim, {rows, 1, rotated}));
}

}  // namespace terrace::layers
