#include <terrace/parallel/layers/branch/residual_branch.h>

#include <algorithm>
#include <utility>

#include <terrace/parallel/layers/parts/grid_cut.h>
#include <terrace/parallel/layers/parts/grid_product.h>

namespace terrace::layers {

Product::Tiles ResidualBranch::tiles_of(const Transformer& config, const Parts& parts, Product::Cut inner_cut) {
  const bool inner = parts.inner_rows > 0 && !config.tensor().is_grid();
  return {inner ? inner_cut : Product::Cut::columns, parts.tiles, inner || parts.tiles > 1};
}

// In tiles the matrices are units, and what is small is outside them. Block i is the layers 2i + 1 and 2i + 2.
ResidualBranch::ResidualBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts)
    : TransformerLayer(std::move(name), config),
      inner_rows_(parts.inner_rows),
      middle_width_(parts.out_inputs),
      in_result_(parts.in_result),
      norm_([&] {
        if (parts.skips_from >= 0) skips_from_ = static_cast<std::uint32_t>(2 * parts.skips_from + 2);
        if (skips_from_ && parts.tiles > 1) declare_skip(config.names.in_block(block, "skip"), 0);
        return Norm(params_, config.names.norm_in_block(block, parts.norm), config);
      }()),
      query_key_norm_(parts.is_attention ? QueryKeyNorm(params_, config, block) : QueryKeyNorm()),
      in_(params_,
          Product::first_of(config.names.in_block(block, ""), parts.in, parts.in_outputs, parts.in_ways, config,
                            tiles_of(config, parts, Product::Cut::outputs)),
          config),
      out_(params_,
           Product::second_of(config.names.in_block(block, ""), parts.out, parts.out_inputs, config,
                              tiles_of(config, parts, Product::Cut::inputs)),
           config),
      result_norm_([&] {
        const std::uint32_t first = in_.is_apart() ? 1 : 0;
        in_.declare(params_, first, config);
        out_.declare(params_, first + 1, config);
        return ResultNorm(params_, config.names.norm_in_block(block, parts.result_norm), config);
      }()) {
  const std::uint32_t last = in_.is_apart() ? 2 : 1;
  for (const auto& p : params_of(result_norm_)) params_[p.param].unit = last;
  in_.adapt(params_, last + 1, config);
  out_.adapt(params_, last + 2, config);
  if (skips_from_ && parts.tiles == 1) declare_skip(config.names.in_block(block, "skip"), params_.back().unit);
}

// A row of a grid's ranks has some of the sequences, whole.
BatchShape ResidualBranch::middle_shape(BatchShape shape) const {
  return on_grid() ? BatchShape{shape.batch / (config_.tensor().grid.depth * config_.tensor().grid.side), shape.seq} : shape;
}

// In 3D, the first product has moved the sequences of a row to the ranks of a column, so the place on axis `col` decides.
LayerContext ResidualBranch::middle_context(const LayerContext& ctx) const {
  auto some = ctx;
  if (!on_grid()) return some;
  const GridCut cut(config_.tensor(), true);
  const auto row = cut.place(Axis::depth) * cut.side() + cut.place(config_.tensor().grid.cube ? Axis::col : Axis::row);
  some.shape = middle_shape(ctx.shape);
  some.documents = ctx.documents.from(row * some.shape.batch);
  return some;
}

std::vector<TensorSpec> ResidualBranch::saved(BatchShape shape) const {
  std::vector<TensorSpec> all{norm_.statistics(rows_of(shape))};
  const auto middle = middle_shape(shape);
  if (!in_inner_tiles()) std::ranges::copy(saved_of_middle(middle), std::back_inserter(all));
  if (on_grid())
    all.push_back({"norm's result", config_.dtype, {middle.tokens(), config_.hidden / config_.tensor().grid.side}});
  std::ranges::copy(query_key_norm_.saved(middle.tokens()), std::back_inserter(all));
  std::ranges::copy(result_norm_.saved(rows_of(shape)), std::back_inserter(all));
  if (skips_from_) all.push_back({"input with the skip", config_.dtype, {shape.tokens(), config_.hidden}});
  return all;
}

ResidualBranch::SavedOfNorms ResidualBranch::saved_of_norms(const LayerTensors& t) const {
  const std::size_t result = result_norm_ ? ResultNorm::kSaved : 0, query_key = query_key_norm_.saved(1).size();
  const auto end = t.saved.size() - of_skip();
  SavedOfNorms some{t.saved.subspan(end - result - query_key, query_key), {}};
  if (result_norm_) some.result = {t.saved[end - 2], t.saved[end - 1]};
  return some;
}

Tensors ResidualBranch::carried_of_query_key(const LayerTensors& t) const {
  return t.carried.subspan(on_shares() ? kDout + 1 : kDout, query_key_norm_.carried(1).size());
}

Tensors ResidualBranch::carried_codes(const LayerTensors& t, CarriedCodes of) const {
  if (!carries_codes()) return {};
  return t.carried.subspan(kDout + query_key_norm_.carried(1).size() + of, Product::kKept);
}

double ResidualBranch::carried_bytes(BatchShape shape, bool codes) const {
  double bytes = 0;
  for (const auto& spec : carried(shape))
    if (is_float8(spec.dtype) == codes) bytes += static_cast<double>(spec.bytes());
  return bytes;
}

// A phase that uses what is carried counts as using all of it, the codes too. This is taken back: rounding counts what it
// writes of them, and products read operands in the time of their FLOPs.
void ResidualBranch::count_carried_codes(CallSteps& steps, BatchShape shape) const {
  if (!carries_codes()) return;
  const double codes = carried_bytes(shape, true);
  for (auto& step : steps.steps())
    if (step.phase.carried) step.phase.float8_bytes -= codes * (step.phase.carried == Access::update ? 2 : 1);
}

std::vector<TensorSpec> ResidualBranch::saved_of_middle(BatchShape shape) const {
  return {{in_result_, config_.dtype, {shape.tokens(), in_.outputs()}}};
}

std::vector<TensorSpec> ResidualBranch::carried(BatchShape shape) const {
  const auto n = middle_shape(shape).tokens();
  std::vector<TensorSpec> all{{"gradient of norm's result", config_.dtype, {rows_of(shape), config_.hidden}}};
  if (!in_inner_tiles()) all.push_back({"gradient of " + in_result_, config_.dtype, {n, in_.outputs()}});
  if (on_shares())
    all.push_back({"gradient of the result",
                   config_.dtype,
                   {n, on_grid() ? config_.hidden / config_.tensor().grid.side : config_.hidden}});
  std::ranges::copy(query_key_norm_.carried(n), std::back_inserter(all));
  if (carries_codes())
    for (const auto& specs : {in_.kept_codes(all[kDin].name, n), out_.kept_codes("the gradient of the result", n)})
      std::ranges::copy(specs, std::back_inserter(all));
  if (result_norm_ && !on_shares()) all.push_back(result_norm_.carried(shape.tokens()));
  if (skips_from_) all.push_back({"gradient of the skip's weight", accumulator_of(config_.dtype), {config_.hidden}});
  return all;
}

double ResidualBranch::forward_flops(BatchShape shape) const {
  return product_flops(shape, in_.outputs()) + product_flops(shape, middle_width()) + middle_flops(middle_shape(shape));
}

LayerFacts ResidualBranch::facts(BatchShape shape) const {
  return {.saved = saved(shape),
          .carried = carried(shape),
          .forward_flops = forward_flops(shape),
          .keeps_input = !skips_from_,
          .skips_from = skips_from_};
}

void ResidualBranch::describe_call(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const bool forward = call == LayerCall::forward;
  if (call != LayerCall::decode)
    for (const auto& tensor : middle_work(call, middle_shape(shape))) static_cast<void>(steps.room(tensor));
  if (in_inner_tiles() && !on_grid())
    describe_inner(steps, call, shape);
  else if (call == LayerCall::decode)
    describe_decode(steps);
  else if (on_grid())
    forward ? forward_on_grid(steps, shape) : backward_on_grid(steps, shape);
  else
    forward ? forward_in_turns(steps, shape) : backward_in_turns(steps, shape);
  if (skips_from_) put_skip_before(steps, call);
}

void ResidualBranch::add_middle(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const auto first = steps.steps().size();
  describe_middle(steps, call, middle_shape(shape));
  for (auto& step : std::span(steps.steps()).subspan(first)) {
    if (step.run && on_grid())
      step.run = [this, run = std::move(step.run)](LayerContext& ctx, const LayerTensors& t) {
        auto of_middle = middle_context(ctx);
        run(of_middle, t);
      };
    if ((on_shares() || result_norm_ || carries_codes()) && step.phase.carried == Access::overwrite)
      step.phase.carried = Access::update;  // a gradient is carried already
  }
}

HeldTensor ResidualBranch::held_in_result(CallSteps& steps, BatchShape shape, bool several_phases) const {
  const auto rows = saves_in_result() ? 0 : shape.tokens();
  return {steps, in_result_, config_.dtype, {rows, in_.outputs()}, several_phases};
}

HeldTensor ResidualBranch::held_middle(CallSteps& steps, BatchShape shape, bool several_phases) const {
  const auto rows = saved_middle() ? 0 : shape.tokens();
  return {steps, "input of the second product", config_.dtype, {rows, out_.inputs()}, several_phases};
}

TensorView ResidualBranch::middle_in(LayerContext& ctx, const LayerTensors& t, const HeldTensor& held, ScratchArena& arena,
                                     bool first) const {
  if (const auto saved = saved_middle()) return t.saved[*saved];
  const auto to = held.view(t, arena);
  if (first) make_middle(ctx, t, to, t.saved[kInResult]);
  return to;
}

PhaseExchange ResidualBranch::sum_of(const NormSums& sums, BatchShape shape) const {
  const auto elements = query_key_norm_.sums(middle_shape(shape).tokens()).shape.elements();
  const auto members = on_grid() ? GridProduct::members(GridCut(config_.tensor(), true).out) : mesh::kTensorRanks;
  return all_reduce(members, sums.here, sums.all, elements);
}

// Sums that norms across ranks need; else none.
ResidualBranch::NormSums ResidualBranch::add_norm_sums(CallSteps& steps, BatchShape shape) const {
  if (!norms_across()) return {};
  const auto sums = query_key_norm_.sums(middle_shape(shape).tokens());
  auto here = sums;
  here.name += ", this rank's part";
  const auto first = steps.room(here);
  return {.here = first, .all = steps.room(sums)};
}

// Tensor ranks add up the result of `out`, and each of them norms it.
void ResidualBranch::add_result(CallSteps& steps, BatchShape shape) const {
  const auto position = static_cast<std::uint32_t>(saved(shape).size() - ResultNorm::kSaved);
  result_norm_.describe_sum(steps, config_.tensor(), shape.tokens(), position,
                            [this](const LayerTensors& t) { return saved_of_norms(t).result; });
}

// Norms of q and k across ranks wait for a sum; then the middle is saved, or begins.
void ResidualBranch::norm_across(CallSteps& steps, BatchShape shape, const NormSums& sums, const HeldTensor& result) const {
  steps.exchange(Half::both, sum_of(sums, shape));
  Phase norms{.weights = params_of(query_key_norm_),
              .saved = Access::update,
              .work = CallSteps::uses({sums.all}, begins_middle(LayerCall::forward)),
              .scratch_bytes = query_key_norm_.scratch_bytes(middle_shape(shape).tokens()),
              .flops = flops_at_once(shape)};
  result.use(norms, Access::update);
  steps.compute(std::move(norms), [=, this](LayerContext& whole, const LayerTensors& t) {
    auto ctx = middle_context(whole);
    ScratchArena arena(ctx.scratch);
    const auto of_in = in_result(t, result, arena);
    query_key_norm_.forward(ctx, t.weights, of_in, saved_of_norms(t).query_key, arena, t.work[sums.all]);
    save_middle(ctx, t, of_in);
  });
}

// The first phases of the gradient of norms across ranks.
void ResidualBranch::norm_grad_across(CallSteps& steps, BatchShape shape, const NormSums& sums) const {
  if (!norms_across()) return;
  steps.compute({.half = Half::input,
                 .weights = params_of(query_key_norm_),
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses({}, {sums.here})},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  query_key_norm_.take(ctx, t.carried[kDin], carried_of_query_key(t), saved_of_norms(t).query_key, t.weights,
                                       t.work[sums.here]);
                });
  steps.exchange(Half::input, sum_of(sums, shape));
}

void ResidualBranch::norm_in_result_grad(LayerContext& ctx, const LayerTensors& t, const NormSums& sums) const {
  query_key_norm_.input_grad(ctx, t.weights, t.carried[kDin], saved_of_norms(t).query_key, carried_of_query_key(t),
                             ScratchArena(ctx.scratch), norms_across() ? t.work[sums.all] : TensorView{});
}

// If all tensor ranks have whole rows, only the leading rank computes this gradient.
void ResidualBranch::norm_result_weight_grad(LayerContext& ctx, const LayerTensors& t) const {
  result_norm_.weight_grad(ctx, t.gradients, t.dy, saved_of_norms(t).result, t.accumulate,
                           on_shares() || config_.tensor().leads());
}

void ResidualBranch::norm_weight_grad(LayerContext& ctx, const LayerTensors& t, TensorView statistics) const {
  norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, statistics, t.accumulate);
  if (query_key_norm_)
    query_key_norm_.weight_grad(ctx, t.gradients, saved_of_norms(t).query_key, carried_of_query_key(t), t.accumulate);
}

// The last phase of a forward on shares: norm of the result, residual.
void ResidualBranch::end_forward(CallSteps& steps, std::vector<PhaseWork> work, const Take& take) const {
  Phase end{.weights = params_of(result_norm_), .x = true, .y = Access::overwrite, .work = std::move(work)};
  if (result_norm_) end.saved = Access::update;
  steps.compute(std::move(end), [=, this](LayerContext& ctx, const LayerTensors& t) {
    if (const auto norms = saved_of_norms(t); result_norm_) {
      take(ctx, t, norms.result.result, Accumulate::no);
      return result_norm_.forward(ctx, t.weights, t.y, t.x, norms.result);
    }
    ctx.math.convert(ctx.stream, t.y, t.x);
    take(ctx, t, t.y, Accumulate::yes);
  });
}

// The last phase of an input half on shares.
void ResidualBranch::residual_grad(CallSteps& steps, std::vector<PhaseWork> work, const Take& take) const {
  steps.compute({.half = Half::input,
                 .weights = params_of(norm_),
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = std::move(work)},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  const auto dnormed = t.carried[kDnormed];
                  take(ctx, t, dnormed, Accumulate::no);
                  ctx.math.convert(ctx.stream, t.dx, t.dy);
                  norm_.input_grad(ctx, t.weights, t.dx, dnormed, t.x, t.saved[kStatistics], Accumulate::yes);
                });
}

}  // namespace terrace::layers
