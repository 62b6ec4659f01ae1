#include <terrace/parallel/layers/head.h>

namespace terrace::layers {
namespace {

// A slice's logits have at most this many elements (64 MiB in fp32): enough rows for a product at full speed beside which
// adding dW to its gradient costs little, and little memory beside the table itself.
constexpr std::int64_t kSliceElements = std::int64_t{1} << 24;
constexpr std::int64_t kSliceStep = 64;  // slices are whole steps
constexpr std::int64_t kLongestSlice = 512;

enum Carried : std::size_t { kDnormed };

}  // namespace

Head::Head(const Transformer& config)
    : TransformerLayer("head", config), norm_(params_, config.names.final_norm, config), logits_([&] {
        params_.push_back(table_of(config, config.tied ? config.names.embedding : config.names.head));
        params_.back().tied = config.tied;
        return Projection::declared(params_, config.dtype);
      }()) {}

std::int64_t Head::slice_rows() const {
  return std::clamp(kSliceElements / rows_here() / kSliceStep * kSliceStep, kSliceStep, kLongestSlice);
}

std::vector<TensorSpec> Head::carried(BatchShape shape) const {
  return {{"gradient of norm's result", config_.dtype, {shape.tokens(), config_.hidden}}};
}

Head::Scratch::Scratch(const Head& head, ScratchArena& arena, std::int64_t rows) : losses(arena.take(DType::fp64, {rows})) {
  const auto spec = head.norm_.statistics(rows);
  const std::int64_t slice = std::min(rows, head.slice_rows());
  statistics = arena.take(spec.dtype, spec.shape);
  normed = arena.take(head.config_.dtype, {slice, head.config_.hidden});
  logits = arena.take(head.config_.dtype, {slice, head.rows_here()});
  if (head.config_.tensor.ranks == 1) return;
  targets = arena.take(DType::i32, {rows});
  log_sums = arena.take(accumulator_of(head.config_.dtype), {rows});
}

Head::Decode::Decode(const Head& head, ScratchArena& arena) {
  const auto spec = head.norm_.statistics(1);
  statistics = arena.take(spec.dtype, spec.shape);
  normed = arena.take(head.config_.dtype, {1, head.config_.hidden});
}

std::uint64_t Head::scratch_bytes(BatchShape shape) const {
  ScratchArena arena;
  Scratch(*this, arena, shape.tokens());  // a decode step needs a part of it
  return arena.peak_bytes();
}

double Head::forward_flops(BatchShape shape) const {
  return 2 * static_cast<double>(shape.tokens()) * static_cast<double>(config_.hidden) * static_cast<double>(rows_here());
}

void Head::check_loss(const LayerContext& ctx) const {
  check("targets", ctx.targets, DType::i32, {ctx.shape.tokens()});
  check("loss", ctx.loss, DType::fp64, {1});
}

Head::Slice Head::slice_at(const LayerContext& ctx, const LayerTensors& t, const Scratch& scratch, std::int64_t first) const {
  const std::int64_t n = ctx.shape.tokens(), count = std::min(slice_rows(), n - first), c = config_.hidden;
  return {.first = first,
          .count = count,
          .statistics = NormStatistics(scratch.statistics).rows(first, count),
          .x = part(t.x, first * c, {count, c}),
          .normed = row_slice(scratch.normed, 0, count),
          .logits = row_slice(scratch.logits, 0, count),
          .losses = part(scratch.losses, first, {count}),
          .targets = part(scratch.targets.empty() ? ctx.targets : scratch.targets, first, {count}),
          .log_sums = part(scratch.log_sums, first, {count})};
}

std::vector<TensorView> Head::with_rows_here(std::span<const TensorView> tensors) const {
  std::vector<TensorView> some(tensors.begin(), tensors.end());
  if (!some.empty()) some.back() = row_slice(some.back(), 0, rows_here());
  return some;
}

void Head::make_logits(LayerContext& ctx, const LayerTensors& t, const Slice& slice) const {
  norm_.forward(ctx, t.weights, slice.normed, slice.x, slice.statistics);
  logits_.forward(ctx, logits_.prepare(ctx, t.weights, {}), slice.logits, slice.normed);
}

void Head::make_losses(LayerContext& ctx, const Slice& slice, bool gradient) const {
  const TensorView dlogits = gradient ? slice.logits : TensorView{};
  if (slice.log_sums.empty())
    ctx.math.cross_entropy(ctx.stream, slice.losses, dlogits, slice.logits, slice.targets, ctx.loss_scale);
  else
    ctx.math.cross_entropy_part(ctx.stream, slice.losses, dlogits, slice.logits, slice.targets, slice.log_sums, ctx.loss_scale);
}

std::optional<TensorSpec> Head::survey_spec(BatchShape shape) const {
  if (config_.tensor.ranks == 1) return std::nullopt;
  return TensorSpec{"log-sum-exp of logits", accumulator_of(config_.dtype), {shape.tokens()}};
}

void Head::survey(LayerContext& ctx, const LayerTensors& given) const {
  const auto weights = with_rows_here(given.weights);
  LayerTensors t = given;
  t.weights = weights;
  ScratchArena arena(ctx.scratch);
  const Scratch scratch(*this, arena, ctx.shape.tokens());
  const TensorView mine = row_slice(ctx.survey, config_.tensor.rank, 1);
  for (std::int64_t first = 0; first < ctx.shape.tokens(); first += slice_rows()) {
    const Slice slice = slice_at(ctx, t, scratch, first);
    make_logits(ctx, t, slice);
    ctx.math.log_sum_exp(ctx.stream, part(mine, first, {slice.count}), slice.logits);
  }
}

void Head::read_survey(LayerContext& ctx, const Scratch& scratch) const {
  if (scratch.log_sums.empty()) return;
  ctx.math.ids_in_part(ctx.stream, scratch.targets, ctx.targets, config_.vocab_here().begin, rows_here());
  ctx.math.merge_log_sums(ctx.stream, scratch.log_sums, ctx.survey, ctx.targets);
}

void Head::forward(LayerContext& ctx, const LayerTensors& given) const {
  check_forward(ctx, given, {.y = false});
  check_loss(ctx);
  const auto weights = with_rows_here(given.weights);
  LayerTensors t = given;
  t.weights = weights;
  ScratchArena arena(ctx.scratch);
  const Scratch scratch(*this, arena, ctx.shape.tokens());
  read_survey(ctx, scratch);
  for (std::int64_t first = 0; first < ctx.shape.tokens(); first += slice_rows()) {
    const Slice slice = slice_at(ctx, t, scratch, first);
    make_logits(ctx, t, slice);
    make_losses(ctx, slice, false);
  }
  ctx.math.sum(ctx.stream, ctx.loss, scratch.losses, Accumulate::no);
}

void Head::backward(LayerContext& ctx, const LayerTensors& given, Half half) const {
  if (ctx.evaluate) return forward(ctx, given);
  check_backward(ctx, given, half, {.y = false});
  check_loss(ctx);
  const auto weights = with_rows_here(given.weights), gradients = with_rows_here(given.gradients);
  LayerTensors t = given;
  t.weights = weights;
  t.gradients = gradients;
  ScratchArena arena(ctx.scratch);
  const Scratch scratch(*this, arena, ctx.shape.tokens());
  const Projection::Whole table = logits_.prepare(ctx, t.weights, {});
  const TensorView dnormed = t.carried[kDnormed];

  read_survey(ctx, scratch);
  for (std::int64_t first = 0; first < ctx.shape.tokens(); first += slice_rows()) {
    const Slice slice = slice_at(ctx, t, scratch, first);
    make_logits(ctx, t, slice);
    make_losses(ctx, slice, true);
    const TensorView dlogits = slice.logits;
    if (has(half, Half::input)) {
      logits_.input_grad(ctx, table, part(dnormed, first * config_.hidden, {slice.count, config_.hidden}), dlogits);
    }
    if (has(half, Half::weight)) {
      logits_.weight_grad(ctx, t.gradients, {}, dlogits, slice.normed, first == 0 ? t.accumulate : Accumulate::yes);
    }
  }
  if (has(half, Half::input)) {
    ctx.math.sum(ctx.stream, ctx.loss, scratch.losses, Accumulate::no);
    norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, scratch.statistics, Accumulate::no);
  }
  if (!has(half, Half::weight)) return;
  norm_.weight_grad(ctx, t.gradients, dnormed, t.x, scratch.statistics, t.accumulate);
  if (t.accumulate == Accumulate::no) zero_rest(ctx, given.gradients.back());
}

void Head::decode_step(LayerContext& ctx, std::span<const TensorView> weights, TensorView x, TensorView y, CacheViews cache,
                       std::int64_t position) const {
  check_decode(ctx, weights, cache, position);
  check("x", x, config_.dtype, {1, config_.hidden});
  check("y", y, config_.dtype, {1, config_.vocab});
  ScratchArena arena(ctx.scratch);
  const Decode scratch(*this, arena);
  norm_.forward(ctx, weights, scratch.normed, x, scratch.statistics);
  logits_.forward(ctx, logits_.prepare(ctx, weights, {}), y, scratch.normed);
}

}  // namespace terrace::layers
