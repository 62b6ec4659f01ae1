#include <terrace/parallel/layers/attention/grid_attention.h>

#include <terrace/parallel/layers/parts/grid_cut.h>
#include <terrace/parallel/layers/parts/rotate.h>

namespace terrace::layers {

GridAttention::GridAttention(const Transformer& config, std::int64_t block)
    : GridBranch("layers." + std::to_string(block) + ".attention", config, block, parts_of(checked(config))),
      block_(block),
      window_(config.window.of(block)) {}

GridBranch::Parts GridAttention::parts_of(const Transformer& config) {
  const std::int64_t kv = config.kv_heads * config.head_dim();
  return {.norm = config.names.attention_norm,
          .in = config.names.qkv,
          .out = config.names.attention_output,
          .in_outputs = {config.attended(), kv, kv},
          .out_inputs = config.attended(),
          .in_result = "q, k and v"};
}

// This rank attends to the sequences of its row of ranks. In 3D, the first product has moved the sequences of a row to the
// ranks of a column, so the place on axis `col` decides.
SequenceAttention GridAttention::attention(BatchShape shape) const {
  const auto sequences = here(shape).batch;
  const GridCut cut(config_.tensor(), true);
  const auto row = cut.place(Axis::depth) * cut.side() + cut.place(config_.tensor().grid.cube ? Axis::col : Axis::row);
  return {.shape = {sequences, shape.seq, config_.heads_here(), config_.kv_heads_here(), config_.head_dim()},
          .window = window_,
          .first_sequence = row * sequences};
}

std::vector<TensorSpec> GridAttention::saved(BatchShape shape) const {
  auto all = GridBranch::saved(shape);
  all.push_back({"attention's result", config_.dtype, {here(shape).tokens(), config_.attended_here()}});
  all.push_back({"log-sum-exp of scores", accumulator_of(config_.dtype), {here(shape).batch, config_.heads_here(), shape.seq}});
  return all;
}

double GridAttention::middle_flops(BatchShape shape) const {
  return 2 * static_cast<double>(here(shape).tokens()) * pairs_twice(shape.seq, window_) *
         static_cast<double>(config_.attended_here());
}

void GridAttention::rotate(LayerContext& ctx, TensorView qkv, bool inverse) const {
  const auto sequences = attention(ctx.shape);
  const auto turn = [&](const TensorView& rows, std::int64_t first_position) {
    rotate_heads(ctx, config_, block_, rows, first_position, inverse);
  };
  if (ctx.documents.whole_sequences()) return turn(qkv, 0);
  for (std::int64_t b = 0; b < sequences.shape.batch; ++b)
    for (const auto& piece : ctx.documents.pieces(sequences.first_sequence + b, {0, ctx.shape.seq}))
      turn(row_slice(qkv, b * ctx.shape.seq + piece.begin, piece.count), piece.begin - piece.document);
}

void GridAttention::save_middle(LayerContext& ctx, const LayerTensors& t) const {
  rotate(ctx, t.saved[kInResult], false);
  attend(ctx, attention(ctx.shape), t.saved[kAttended], t.saved[kLogSumExp], t.saved[kInResult]);
}

void GridAttention::middle(LayerContext& ctx, const LayerTensors& t, TensorView to) const {
  ctx.math.convert(ctx.stream, to, t.saved[kAttended]);
}

void GridAttention::middle_grad(LayerContext& ctx, const LayerTensors& t, TensorView din, TensorView dmiddle) const {
  attend_grad(ctx, attention(ctx.shape), din, dmiddle, t.saved[kAttended], t.saved[kLogSumExp], t.saved[kInResult]);
  rotate(ctx, din, true);
}

}  // namespace terrace::layers
