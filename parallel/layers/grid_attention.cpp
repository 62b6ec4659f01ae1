#include <terrace/parallel/layers/grid_attention.h>

namespace terrace::layers {

GridAttention::GridAttention(const Transformer& config, std::int64_t block)
    : GridBranch("layers." + std::to_string(block) + ".attention", config, block, parts_of(checked(config))) {}

GridBranch::Parts GridAttention::parts_of(const Transformer& config) {
  const std::int64_t kv = config.kv_heads * config.head_dim();
  return {.norm = config.names.attention_norm,
          .in = config.names.qkv,
          .out = config.names.attention_output,
          .in_outputs = {config.hidden, kv, kv},
          .out_inputs = config.hidden,
          .in_result = "q, k and v"};
}

AttentionShape GridAttention::attention_shape(BatchShape shape) const {
  return {here(shape).batch, shape.seq, config_.heads_here(), config_.kv_heads_here(), config_.head_dim()};
}

std::vector<TensorSpec> GridAttention::saved(BatchShape shape) const {
  auto all = GridBranch::saved(shape);
  all.push_back({"attention's result", config_.dtype, {here(shape).tokens(), config_.attended_here()}});
  all.push_back({"log-sum-exp of scores", accumulator_of(config_.dtype), {here(shape).batch, config_.heads_here(), shape.seq}});
  return all;
}

// A query meets (S + 1) / 2 keys on average, and as many values.
double GridAttention::middle_flops(BatchShape shape) const {
  return 2 * static_cast<double>(here(shape).tokens() * (shape.seq + 1)) * static_cast<double>(config_.attended_here());
}

void GridAttention::rotate(LayerContext& ctx, TensorView qkv, bool inverse) const {
  if (config_.positions != Positions::rotary) return;
  const TensorView q_and_k{
      qkv.data, qkv.dtype, {qkv.shape[0], config_.heads_here() + config_.kv_heads_here(), config_.head_dim()}};
  ctx.math.rotary(ctx.stream, q_and_k, in_.outputs(), ctx.shape.seq, 0, config_.rope_theta, inverse);
}

void GridAttention::save_middle(LayerContext& ctx, const LayerTensors& t) const {
  rotate(ctx, t.saved[kInResult], false);
  ctx.math.attention(ctx.stream, attention_shape(ctx.shape), t.saved[kAttended], t.saved[kLogSumExp], t.saved[kInResult]);
}

void GridAttention::middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const {
  ctx.math.convert(ctx.stream, to, t.saved[kAttended]);
}

void GridAttention::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const {
  ctx.math.attention_grad(ctx.stream, attention_shape(ctx.shape), din, dmiddle, t.saved[kAttended], t.saved[kLogSumExp],
                          t.saved[kInResult]);
  rotate(ctx, din, true);
}

}  // namespace terrace::layers
