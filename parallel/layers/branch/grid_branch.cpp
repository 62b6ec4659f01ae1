#include <terrace/parallel/layers/branch/grid_branch.h>

#include <utility>

#include <terrace/parallel/layers/parts/grid_product.h>

namespace terrace::layers {
namespace {

std::vector<std::uint32_t> with(std::vector<std::uint32_t> some, const std::vector<std::uint32_t>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

}  // namespace

GridBranch::GridBranch(std::string name, const Transformer& config, std::int64_t block, const Parts& parts)
    : TransformerLayer(std::move(name), config),
      norm_(params_, config.names.norm_in_block(block, parts.norm), config),
      in_(params_, config.names.in_block(block, ""), parts.in, parts.in_outputs, config.hidden,
          {Projection::Split::Of::outputs}, config.init_std, config),
      out_(params_, config.names.in_block(block, ""), parts.out, {config.hidden}, parts.out_inputs,
           {Projection::Split::Of::inputs}, config.residual_init_std(), config),
      in_result_(parts.in_result),
      middle_width_(parts.out_inputs) {
  out_.set_unit(params_, 1);
}

std::vector<TensorSpec> GridBranch::saved(BatchShape shape) const {
  return {norm_.statistics(rows_of(shape)),
          {"norm's result", config_.dtype, block(shape)},
          {in_result_, config_.dtype, {here(shape).tokens(), in_.outputs()}}};
}

std::vector<TensorSpec> GridBranch::carried(BatchShape shape) const {
  return {{"gradient of the result", config_.dtype, block(shape)},
          {"gradient of " + in_result_, config_.dtype, {here(shape).tokens(), in_.outputs()}},
          {"gradient of norm's result", config_.dtype, share(shape)}};
}

// The norm's result, before its columns are dealt out.
std::uint64_t GridBranch::scratch_bytes(BatchShape shape) const { return TensorSpec{"", config_.dtype, share(shape)}.bytes(); }

double GridBranch::forward_flops(BatchShape shape) const {
  const auto n = static_cast<double>(here(shape).tokens());
  return 2 * n * static_cast<double>(config_.hidden * in_.outputs() + middle_width_ * columns()) + middle_flops(shape);
}

GridTensor GridBranch::travels(CallSteps& steps, const std::string& name, GridTensor lies) const {
  return is_cube() ? GridTensor{GridTensor::In::work, steps.room(name, config_.dtype)} : lies;
}

std::vector<std::uint32_t> GridBranch::travelling(const GridTensor& tensor) const {
  return tensor.in == GridTensor::In::work ? std::vector{tensor.number} : std::vector<std::uint32_t>{};
}

void GridBranch::describe(CallSteps& steps, LayerCall which, BatchShape shape) const {
  begin(steps, which);
  if (which == LayerCall::forward) write_forward(steps, shape);
  if (which == LayerCall::backward) write_backward(steps, shape);
  if (which == LayerCall::decode)
    steps.compute([this](LayerContext&, const LayerTensors&) { fail("ranks in a grid do not generate"); });
}

void GridBranch::deal(LayerContext& ctx, TensorView rows, TensorView blocks, Way way, Accumulate accumulate) const {
  const auto count = rows.shape[0];
  for (std::int64_t j = 0; j < side(); ++j) {
    const auto its = part(blocks, j * count * columns(), {count, columns()});
    if (way == Way::pack)
      ctx.math.columns(ctx.stream, its, 0, rows, j * columns(), columns(), accumulate);
    else
      ctx.math.columns(ctx.stream, rows, j * columns(), its, 0, columns(), accumulate);
  }
}

// Sends the same number of elements to each rank, and receives as many, in either direction.
void GridBranch::exchange_columns(CallSteps& steps, Half half, BatchShape shape, std::uint32_t from, std::uint32_t to) const {
  const std::vector each(static_cast<std::size_t>(side()), rows_of(shape) * columns());
  steps.exchange(
      half, {.members = {.axes = Axis::col, .lane = Lane::tensor}, .from = from, .to = to, .sent = each, .received = each});
}

void GridBranch::write_forward(CallSteps& steps, BatchShape shape) const {
  const auto n = here(shape).tokens();
  const auto sent = steps.room("columns for each rank", config_.dtype), came = steps.room("columns by rank", config_.dtype),
             middles = steps.room("input of the second product", config_.dtype);
  const GridRooms rooms(steps, config_.dtype, is_cube());
  const auto in_result = travels(steps, in_result_, {GridTensor::In::saved, kInResult});
  GridProduct in(steps, rooms, in_, config_.tensor(), true, n), out(steps, rooms, out_, config_.tensor(), false, n);

  steps.compute({.weights = params_of(norm_),
                 .x = true,
                 .saved = Access::overwrite,
                 .work = CallSteps::uses({}, {sent}),
                 .scratch_bytes = scratch_bytes(shape)},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  ScratchArena arena(ctx.scratch);
                  const auto normed = arena.take(config_.dtype, share(shape));
                  norm_.forward(ctx, t.weights, normed, t.x, t.saved[kStatistics]);
                  deal(ctx, normed, t.work[sent], Way::pack, Accumulate::no);
                });
  exchange_columns(steps, Half::both, shape, sent, came);
  steps.compute({.saved = Access::update, .work = CallSteps::uses({came}, {}), .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.saved[kNormed], CallSteps::view(t, came, block(shape)));
                });
  in.forward(came, in_result);
  steps.reserve(middles, n * middle_columns());
  steps.compute({.saved = Access::update,
                 .work = CallSteps::uses(travelling(in_result), {middles}),
                 .scratch_bytes = 0,
                 .flops = middle_flops(shape)},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  if (is_cube()) ctx.math.convert(ctx.stream, t.saved[kInResult], in_result.view(t, {n, in_.outputs()}));
                  save_middle(ctx, t);
                  middle(ctx, t, CallSteps::view(t, middles, {n, middle_columns()}));
                });
  out.forward(middles, {GridTensor::In::work, sent});
  exchange_columns(steps, Half::both, shape, sent, came);
  steps.compute({.x = true, .y = Access::overwrite, .work = CallSteps::uses({came}, {}), .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.y, t.x);
                  deal(ctx, t.y, t.work[came], Way::unpack, Accumulate::yes);
                });
}

void GridBranch::write_backward(CallSteps& steps, BatchShape shape) const {
  const auto n = here(shape).tokens();
  const auto sent = steps.room("columns for each rank", config_.dtype), came = steps.room("columns by rank", config_.dtype),
             middles = steps.room("input of a product", config_.dtype);
  const GridRooms rooms(steps, config_.dtype, is_cube());
  const auto dout = travels(steps, "gradient of the result", {GridTensor::In::carried, kDout}),
             din = travels(steps, "gradient of " + in_result_, {GridTensor::In::carried, kDin});
  // Copies a tensor that will be exchanged into a working tensor.
  const auto copy = [=, this](LayerContext& ctx, const GridTensor& to, const LayerTensors& t, const TensorView& from) {
    if (is_cube()) ctx.math.convert(ctx.stream, to.view(t, from.shape), from);
  };
  GridProduct in(steps, rooms, in_, config_.tensor(), true, n), out(steps, rooms, out_, config_.tensor(), false, n);

  constexpr auto input = Half::input, weight = Half::weight;
  steps.compute(
      {.half = input, .dy = true, .work = CallSteps::uses({}, {sent}), .scratch_bytes = 0},
      [=, this](LayerContext& ctx, const LayerTensors& t) { deal(ctx, t.dy, t.work[sent], Way::pack, Accumulate::no); });
  exchange_columns(steps, input, shape, sent, came);
  steps.compute({.half = input, .carried = Access::overwrite, .work = CallSteps::uses({came}, {}), .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.carried[kDout], CallSteps::view(t, came, block(shape)));
                });
  out.input_grad(is_cube() ? GridTensor{GridTensor::In::work, came} : dout, middles);
  if (is_cube()) {
    steps.reserve(dout.number, n * columns());
    steps.reserve(din.number, n * in_.outputs());
  }
  steps.reserve(middles, n * std::max(middle_columns(), columns()));
  steps.compute({.half = input,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses({middles}, travelling(din)),
                 .scratch_bytes = 0,
                 .flops = 2 * middle_flops(shape)},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  middle_grad(ctx, t, t.carried[kDin], CallSteps::view(t, middles, {n, middle_columns()}));
                  copy(ctx, din, t, t.carried[kDin]);
                });
  in.input_grad(din, sent);
  exchange_columns(steps, input, shape, sent, came);
  steps.compute({.half = input,
                 .weights = params_of(norm_),
                 .x = true,
                 .dy = true,
                 .dx = Access::overwrite,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses({came}, {}),
                 .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  deal(ctx, t.carried[kDnormed], t.work[came], Way::unpack, Accumulate::no);
                  ctx.math.convert(ctx.stream, t.dx, t.dy);
                  norm_.input_grad(ctx, t.weights, t.dx, t.carried[kDnormed], t.x, t.saved[kStatistics], Accumulate::yes);
                });

  steps.compute({.half = weight,
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses({}, with(travelling(dout), {middles})),
                 .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  middle(ctx, t, CallSteps::view(t, middles, {n, middle_columns()}));
                  copy(ctx, dout, t, t.carried[kDout]);
                });
  out.weight_grad(middles, dout);
  steps.compute({.half = weight,
                 .gradients = params_of(out_),
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses({rooms.gradient}, with(with(travelling(din), out.bias_gradient()), {middles})),
                 .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  out.add_gradient(ctx, t, t.carried[kDout]);
                  ctx.math.convert(ctx.stream, CallSteps::view(t, middles, block(shape)), t.saved[kNormed]);
                  copy(ctx, din, t, t.carried[kDin]);
                });
  in.weight_grad(middles, din);
  steps.compute({.half = weight,
                 .weights = params_of(norm_),
                 .gradients = params_of(norm_, in_),
                 .x = true,
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses({rooms.gradient}, in.bias_gradient()),
                 .scratch_bytes = 0},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  in.add_gradient(ctx, t, t.carried[kDin]);
                  norm_.weight_grad(ctx, t.gradients, t.carried[kDnormed], t.x, t.saved[kStatistics], t.accumulate);
                });
}

}  // namespace terrace::layers
