#include <terrace/parallel/layers/ends/head.h>

namespace terrace::layers {
namespace {

// If the number of rows is not given, a slice's logits have at most this many elements (64 MiB in fp32). That is
// enough rows for a product at full speed, which costs much more than adding dW to its gradient, and little memory compared
// with the table.
constexpr std::int64_t kSliceElements = std::int64_t{1} << 24;
constexpr std::int64_t kSliceStep = 64;  // the rows of a slice are a multiple of this
constexpr std::int64_t kLongestSlice = 512;

enum Carried : std::size_t { kDnormed };

}  // namespace

Head::Head(const Transformer& config)
    : TransformerLayer("head", config, {.y = false}), norm_(params_, config.names.final_norm, config), logits_([&] {
        params_.push_back(table_of(config, config.tied ? config.names.embedding : config.names.head));
        params_.back().tied = config.tied;
        params_.back().unit = 1;
        return Projection::declared(params_, config.dtype);
      }()) {}

std::int64_t Head::slice_rows() const {
  if (config_.head_rows != 0) return config_.head_rows;
  return std::clamp(kSliceElements / tile_rows() / kSliceStep * kSliceStep, kSliceStep, kLongestSlice);
}

LayerFacts Head::facts(BatchShape shape) const {
  const auto tokens = shape.tokens();
  return {.carried = {{"gradient of norm's result", config_.dtype, {tokens, config_.hidden}}},
          .forward_flops = 2 * static_cast<double>(tokens * config_.hidden) * static_cast<double>(table_rows())};
}

std::uint64_t Head::scratch_bytes(BatchShape shape) const {
  return measured([&](ScratchArena& arena) { return Scratch{*this, arena, shape.tokens()}; });
}

Phase Head::phase(LayerCall call, BatchShape shape, std::uint32_t tile) const {
  const double product = facts(shape).forward_flops / tiles();
  const auto norm = params_of(norm_);
  const PhaseParam table{static_cast<std::uint32_t>(params_.size() - 1), tile};
  Phase phase{.weights = norm, .x = true, .scratch_bytes = scratch_bytes(shape), .flops = product};
  phase.weights.push_back(table);
  if (call != LayerCall::backward) return phase;
  phase.gradients = {table};
  phase.carried = tile == 0 ? Access::overwrite : Access::update;
  phase.flops = 3 * product;
  if (!is_last(tile)) return phase;
  phase.gradients.insert(phase.gradients.begin(), norm.begin(), norm.end());
  phase.dx = Access::overwrite;
  return phase;
}

// A step that computes with all tensors, but of the table only with the tile's rows that have a token. `compute` also gets the
// tensors as they were given.
template <class Compute>
CallSteps::Run Head::with_tile(std::uint32_t number, Compute compute) const {
  return [=, this](LayerContext& ctx, const LayerTensors& given) {
    const auto weights = with_rows(ctx, given.weights, number), gradients = with_rows(ctx, given.gradients, number);
    LayerTensors t = given;
    t.weights = weights;
    t.gradients = gradients;
    compute(ctx, t, given);
  };
}

void Head::describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool surveys = !is_whole() && call != LayerCall::decode;
  const auto room = surveys ? describe_survey(steps, shape) : 0;
  for (std::uint32_t number = 0; number < tiles(); ++number) {
    auto run = with_tile(number, [=, this](LayerContext& ctx, const LayerTensors& t, const LayerTensors& given) {
      if (call == LayerCall::decode) return decode_tile(ctx, t, number);
      check("targets", ctx.targets, DType::i32, {ctx.shape.tokens()});
      check("loss", ctx.loss, DType::fp64, {1});
      const auto survey = surveys ? t.work[room] : TensorView{};
      const bool gradients = call == LayerCall::backward && !ctx.evaluate;
      compute_tile(ctx, t, survey, number, gradients);
      if (gradients && has(ctx.half, Half::weight) && t.accumulate == Accumulate::no && !given.gradients.back().empty())
        zero_rest(ctx, given.gradients.back(), number);
    });
    if (tiles() == 1 && !surveys) return steps.compute(std::move(run), scratch_bytes(shape));
    auto used = phase(call, shape, number);
    if (surveys) used.work.push_back({room, Access::read});
    steps.compute(std::move(used), std::move(run));
  }
}

std::uint32_t Head::describe_survey(CallSteps& steps, BatchShape shape) const {
  const auto sums = accumulator_of(config_.dtype);
  const std::int64_t ranks = config_.tensor().ranks, each = tiles() * shape.tokens();
  const auto here = steps.room({"log-sum-exp of logits by tile", sums, {tiles(), shape.tokens()}});
  for (std::uint32_t number = 0; number < tiles(); ++number) {
    auto used = phase(LayerCall::forward, shape, number);
    used.work.push_back({here, number == 0 ? Access::overwrite : Access::update});
    steps.compute(std::move(used), with_tile(number, [=, this](LayerContext& ctx, const LayerTensors& t, const LayerTensors&) {
                    ScratchArena arena(ctx.scratch);
                    const Scratch scratch{*this, arena, ctx.shape.tokens()};
                    each_slice(ctx, t, scratch, number, [&](const Slice& slice) {
                      const auto first = number * ctx.shape.tokens() + slice.first;
                      ctx.math.log_sum_exp(ctx.stream, part(t.work[here], first, {slice.count}), slice.logits);
                    });
                  }));
  }
  if (ranks == 1) return here;
  const auto all = steps.room({"log-sum-exp of logits by rank and tile", sums, {ranks * tiles(), shape.tokens()}});
  steps.exchange(Half::both, all_gather(mesh::kTensorRanks, here, all, each, ranks));
  return all;
}

Head::Slice Head::slice_at(const LayerContext& ctx, const LayerTensors& t, const Scratch& scratch, std::int64_t first,
                           std::uint32_t tile) const {
  const std::int64_t n = ctx.shape.tokens(), count = std::min(slice_rows(), n - first), c = config_.hidden;
  const auto rows_of = [&](const TensorView& logits) {
    const std::int64_t columns = has_token(tile).count;
    return MatrixView(part(logits, 0, {count, columns}), aligned_stride(config_.dtype, columns));
  };
  return {.first = first,
          .count = count,
          .statistics = NormStatistics(scratch.statistics).rows(first, count),
          .x = part(t.x, first * c, {count, c}),
          .normed = row_slice(scratch.normed, 0, count),
          .losses = part(scratch.losses, first, {count}),
          .targets = part(scratch.targets.empty() ? ctx.targets : scratch.targets, first, {count}),
          .log_sums = part(scratch.log_sums, first, {count}),
          .logits = rows_of(scratch.logits),
          .dlogits = rows_of(scratch.dlogits)};
}

template <class F>
void Head::each_slice(LayerContext& ctx, const LayerTensors& t, const Scratch& scratch, std::uint32_t tile, F&& use) const {
  for (std::int64_t first = 0; first < ctx.shape.tokens(); first += slice_rows()) {
    const Slice slice = slice_at(ctx, t, scratch, first, tile);
    make_logits(ctx, t, slice);
    use(slice);
  }
}

std::vector<TensorView> Head::with_rows(const LayerContext& ctx, Tensors tensors, std::uint32_t number) const {
  std::vector<TensorView> some(tensors.begin(), tensors.end());
  if (!some.empty() && !some.back().empty()) some.back() = rows_with_token(ctx, some.back(), number);
  return some;
}

void Head::make_logits(LayerContext& ctx, const LayerTensors& t, const Slice& slice) const {
  norm_.forward(ctx, t.weights, slice.normed, slice.x, slice.statistics);
  logits_.forward(ctx, logits_.prepare(ctx, t.weights, {}), slice.logits, slice.normed);
  cap(ctx, slice.logits);
}

void Head::cap(LayerContext& ctx, const MatrixView& logits) const {
  const auto all = logits.with_gaps();
  if (config_.logit_cap != 0) ctx.math.soft_cap(ctx.stream, all, all, config_.logit_cap);
}

void Head::make_losses(LayerContext& ctx, const Slice& slice, bool gradient) const {
  const MatrixView dlogits = gradient ? slice.dlogits : MatrixView{};
  if (slice.log_sums.empty())
    ctx.math.cross_entropy(ctx.stream, slice.losses, dlogits, slice.logits, slice.targets, ctx.loss_scale);
  else
    ctx.math.cross_entropy_part(ctx.stream, slice.losses, dlogits, slice.logits, slice.targets, slice.log_sums, ctx.loss_scale);
  if (!gradient || config_.logit_cap == 0) return;
  const auto all = dlogits.with_gaps();
  ctx.math.soft_cap_grad(ctx.stream, all, all, slice.logits.with_gaps(), config_.logit_cap);
}

void Head::read_survey(LayerContext& ctx, const Scratch& scratch, TensorView survey, std::uint32_t number) const {
  if (is_whole()) return;
  const auto [begin, count] = has_token(number);
  ctx.math.ids_in_part(ctx.stream, scratch.targets, ctx.targets, begin, count);
  const std::int64_t parts = config_.tensor().ranks * tiles();
  ctx.math.merge_log_sums(ctx.stream, scratch.log_sums, reshaped(survey, {parts, ctx.shape.tokens()}), ctx.targets);
}

void Head::compute_tile(LayerContext& ctx, const LayerTensors& t, TensorView survey, std::uint32_t number,
                        bool gradients) const {
  ScratchArena arena(ctx.scratch);
  const Scratch scratch{*this, arena, ctx.shape.tokens()};
  const Projection::Whole table = logits_.prepare(ctx, t.weights, {});
  const TensorView dnormed = gradients ? t.carried[kDnormed] : TensorView{};
  const bool input_half = gradients && has(ctx.half, Half::input), weight_half = gradients && has(ctx.half, Half::weight);
  const auto add_tile = number == 0 ? Accumulate::no : Accumulate::yes;

  read_survey(ctx, scratch, survey, number);
  each_slice(ctx, t, scratch, number, [&](const Slice& slice) {
    make_losses(ctx, slice, gradients);
    const MatrixView dlogits = slice.dlogits;
    if (input_half) {
      const auto rows = part(dnormed, slice.first * config_.hidden, {slice.count, config_.hidden});
      logits_.input_grad(ctx, table, rows, dlogits, add_tile);
    }
    if (weight_half)
      logits_.weight_grad(ctx, t.gradients, {}, dlogits, slice.normed, slice.first == 0 ? t.accumulate : Accumulate::yes);
  });
  if (input_half || !gradients) ctx.math.sum(ctx.stream, ctx.loss, scratch.losses, add_tile);
  if (!is_last(number)) return;
  if (input_half) norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, scratch.statistics, Accumulate::no);
  if (weight_half) norm_.weight_grad(ctx, t.gradients, dnormed, t.x, scratch.statistics, t.accumulate);
}

void Head::decode_tile(LayerContext& ctx, const LayerTensors& t, std::uint32_t number) const {
  check("y", t.y, config_.dtype, {1, config_.vocab});
  ScratchArena arena(ctx.scratch);
  const auto statistics = arena.take(norm_.statistics(1)), normed = arena.take(config_.dtype, {1, config_.hidden});
  norm_.forward(ctx, t.weights, normed, t.x, statistics);
  const auto [begin, count] = has_token(number);
  const auto logits = part(t.y, begin, {1, count});
  logits_.forward(ctx, logits_.prepare(ctx, t.weights, {}), logits, normed);
  cap(ctx, logits);
}

}  // namespace terrace::layers
