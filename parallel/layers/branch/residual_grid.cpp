// A residual branch on a grid of tensor ranks, with matrices in blocks (grid_product.h).
//
//   forward    norm, pack │ all-to-all │ in │ middle │ out │ all-to-all │ norm of the result, residual
//   backward   pack │ all-to-all │ out's dx │ middle's gradient │ in's dx │ all-to-all │ norm's gradient, residual
//              │ out's dW │ in's dW, norm's gradient
//
// Between layers a rank has its share of the rows and all columns. The all-to-alls, over the axis `col`, exchange them for all
// rows of a row of ranks and a block of columns, and back. These rows are whole sequences, so the middle needs no other rank of
// the grid. The norm's result is saved, too; each rank saves 1 / ranks of it. With tiles of rows, what is between two
// all-to-alls runs once for each tile.
#include <utility>

#include <terrace/parallel/layers/branch/residual_branch.h>
#include <terrace/parallel/layers/parts/grid_product.h>

namespace terrace::layers {
namespace {

std::vector<std::uint32_t> with(std::vector<std::uint32_t> some, const std::vector<std::uint32_t>& others) {
  some.insert(some.end(), others.begin(), others.end());
  return some;
}

}  // namespace

// What the phases of one call on a grid share.
struct ResidualBranch::GridCall {
  const ResidualBranch& branch;
  CallSteps& steps;
  const BatchShape shape;
  const TensorParallel tensor = branch.config_.tensor();
  const DType dtype = branch.config_.dtype;
  const bool cube = tensor.grid.cube;
  const std::int64_t side = tensor.grid.side, rows = branch.middle_shape(shape).tokens(),
                     columns = branch.config_.hidden / side, own_rows = branch.rows_of(shape);
  const std::uint32_t sent = steps.room("columns for each rank", dtype), came = steps.room("columns by rank", dtype),
                      middles = steps.room("input of a product", dtype);
  const struct Tile {
    std::uint32_t x, in_result, din, result;  // result: or its gradient
  } tile{steps.room("rows of the norm's result", dtype), steps.room("rows of " + branch.in_result_, dtype),
         steps.room("gradient of rows of " + branch.in_result_, dtype), steps.room("rows of the result", dtype)};
  const GridRooms rooms{steps, dtype, cube};
  GridProduct in{rooms, branch.in_, tensor, true, rows}, out{rooms, branch.out_, tensor, false, rows};
  PhaseTensor dout = {}, din = {};

  // Sends the same number of elements to each rank of a row, and receives as many: from `sent` into `came`.
  void exchange_columns(Half half) const {
    const std::vector each(static_cast<std::size_t>(side), own_rows * columns);
    steps.exchange(half, {GridProduct::members(Axis::col), sent, came, each, each});
  }
  // Where a product reads or writes a tensor: in 3D a working tensor, because it is exchanged; else `lies`, its own place.
  [[nodiscard]] PhaseTensor travels(const std::string& name, PhaseTensor lies) const {
    return cube ? PhaseTensor(steps.room(name, dtype)) : lies;
  }
  [[nodiscard]] static std::vector<std::uint32_t> travelling(const PhaseTensor& tensor) {  // its working tensor, if it has one
    return tensor.of == PhaseTensor::Of::work ? std::vector{tensor.number} : std::vector<std::uint32_t>{};
  }
  [[nodiscard]] Shape block() const { return {rows, columns}; }  // of x in a product
};

// Converts between this rank's rows and blocks of their columns, one for each rank of the axis `col`.
void ResidualBranch::deal(LayerContext& ctx, TensorView rows, TensorView blocks, Way way, Accumulate accumulate) const {
  const std::int64_t count = rows.shape[0], side = config_.tensor().grid.side, columns = config_.hidden / side;
  for (std::int64_t j = 0; j < side; ++j) {
    const auto its = part(blocks, j * count * columns, {count, columns});
    move_columns(ctx, way, rows, j * columns, its, 0, columns, accumulate);
  }
}

ResidualBranch::Take ResidualBranch::take_columns(std::uint32_t came) const {
  return [this, came](LayerContext& ctx, const LayerTensors& t, const TensorView& to, Accumulate how) {
    deal(ctx, to, t.work[came], Way::unpack, how);
  };
}

std::size_t ResidualBranch::saved_normed(const LayerTensors& t) const {
  return t.saved.size() - 1 - query_key_norm_.saved(1).size() - (result_norm_ ? ResultNorm::kSaved : 0);
}

// Writes the input of `out` where the product reads it.
void ResidualBranch::stage_middle(LayerContext& whole, const LayerTensors& t, TensorView to) const {
  auto ctx = middle_context(whole);
  if (const auto saved = saved_middle())
    ctx.math.convert(ctx.stream, to, t.saved[*saved]);
  else
    make_middle(ctx, t, to, t.saved[kInResult]);
}

void ResidualBranch::forward_on_grid(CallSteps& steps, BatchShape shape) const {
  GridCall call{*this, steps, shape};
  const auto sent = call.sent, came = call.came;
  const TensorSpec own{"", config_.dtype, {call.own_rows, config_.hidden}};
  steps.compute({.weights = params_of(norm_),
                 .x = true,
                 .saved = Access::overwrite,
                 .work = CallSteps::uses({}, {sent}),
                 .scratch_bytes = own.bytes()},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  ScratchArena arena(ctx.scratch);
                  const auto normed = arena.take(own);
                  norm_.forward(ctx, t.weights, normed, t.x, t.saved[kStatistics]);
                  deal(ctx, normed, t.work[sent], Way::pack, Accumulate::no);
                });
  call.exchange_columns(Half::both);
  steps.compute({.saved = Access::update, .work = CallSteps::uses({came}, {})},
                [=, this, block = call.block()](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.saved[saved_normed(t)], CallSteps::view(t, came, block));
                });
  if (in_inner_tiles())
    each_row_tile(call.rows, [&](comm::Block rows) { grid_row_tile(call, rows, true); });
  else
    grid_products(call);
  call.exchange_columns(Half::both);
  end_forward(steps, CallSteps::uses({came}, {}), take_columns(came));
}

void ResidualBranch::grid_products(GridCall& call) const {
  grid_in(call);
  add_middle(call.steps, LayerCall::forward, call.shape);
  const auto middles = call.middles;
  const Shape of_middle{call.rows, middle_width()};
  if (!ends_with_middle())
    call.steps.compute(
        {.saved = Access::read, .work = CallSteps::uses({}, {middles})},
        [=, this](LayerContext& ctx, const LayerTensors& t) { stage_middle(ctx, t, CallSteps::view(t, middles, of_middle)); });
  call.out.forward(middles, call.sent);
}

// The first product, and what is computed from its result: up to the middle, if it needs no further phase.
void ResidualBranch::grid_in(GridCall& call) const {
  auto& steps = call.steps;
  const Shape whole{call.rows, in_.outputs()}, of_middle{call.rows, middle_width()};
  const bool saves = saves_in_result(), ends = !norms_across();
  auto result = call.travels(in_result_, {kInResult, PhaseTensor::Of::saved});
  if (!saves && !call.cube) result = steps.room(in_result_, config_.dtype);
  call.in.forward(call.came, result);
  const auto sums = add_norm_sums(steps, call.shape);
  Phase end{.weights = ends ? params_of(query_key_norm_) : std::vector<PhaseParam>{},
            .saved = Access::update,
            .work = CallSteps::uses({}, ends ? begins_middle(LayerCall::forward) : std::vector{sums.here}),
            .scratch_bytes = ends ? query_key_norm_.scratch_bytes(call.rows) : 0,
            .flops = ends ? flops_at_once(call.shape) : 0};
  steps.reserve(call.middles, of_middle.elements());
  if (ends_with_middle()) end.work.push_back({call.middles, Access::overwrite});
  for (const auto room : GridCall::travelling(result)) end.work.push_back({room, saves ? Access::read : Access::update});
  steps.compute(std::move(end), [=, this, cube = call.cube, to = call.middles](LayerContext& ctx, const LayerTensors& t) {
    auto here = middle_context(ctx);
    const auto product = CallSteps::view(t, result, whole), of_in = saves ? t.saved[kInResult] : product;
    if (saves && cube) ctx.math.convert(ctx.stream, of_in, product);
    if (!ends) return take_in_result(ctx, t, of_in, sums);
    query_key_norm_.forward(here, t.weights, of_in, saved_of_norms(t).query_key, ScratchArena(ctx.scratch), {});
    save_middle(here, t, of_in);
    if (ends_with_middle()) stage_middle(ctx, t, CallSteps::view(t, to, of_middle));
  });
  if (ends) return;
  const auto held = saves ? held_in_result(steps, call.shape, false) : HeldTensor(config_.dtype, whole, result.number);
  norm_across(steps, call.shape, sums, held);
}

void ResidualBranch::backward_on_grid(CallSteps& steps, BatchShape shape) const {
  GridCall call{*this, steps, shape};
  call.dout = call.travels("gradient of the result", {kDout, PhaseTensor::Of::carried});
  call.din = call.travels("gradient of " + in_result_, {kDin, PhaseTensor::Of::carried});
  grid_dout(call);
  if (in_inner_tiles())
    each_row_tile(call.rows, [&](comm::Block rows) { grid_row_tile(call, rows, false); });
  else
    grid_input(call);
  call.exchange_columns(Half::input);
  residual_grad(steps, CallSteps::uses({call.came}, {}), take_columns(call.came));
  if (!in_inner_tiles()) return grid_weights(call);
  steps.compute({.half = Half::weight,
                 .weights = params_of(norm_),
                 .gradients = params_of(norm_, result_norm_),
                 .x = true,
                 .dy = bool{result_norm_},
                 .saved = Access::read,
                 .carried = Access::read},
                [this](LayerContext& ctx, const LayerTensors& t) {
                  norm_weight_grad(ctx, t, t.saved[kStatistics]);
                  norm_result_weight_grad(ctx, t);
                });
}

// The first phases of a backward, which carry the gradient of the result.
void ResidualBranch::grid_dout(GridCall& call) const {
  constexpr auto half = Half::input;
  auto& steps = call.steps;
  const auto sent = call.sent, came = call.came;
  const TensorSpec own{"", config_.dtype, {call.own_rows, config_.hidden}};
  Phase first{.half = half,
              .weights = params_of(result_norm_),
              .dy = true,
              .work = CallSteps::uses({}, {sent}),
              .scratch_bytes = result_norm_ ? own.bytes() : 0};
  if (result_norm_) first.saved = Access::read;
  steps.compute(std::move(first), [=, this](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const auto gradient = result_norm_ ? arena.take(own) : t.dy;
    if (result_norm_) result_norm_.input_grad(ctx, t.weights, gradient, t.dy, saved_of_norms(t).result, 0);
    deal(ctx, gradient, t.work[sent], Way::pack, Accumulate::no);
  });
  call.exchange_columns(half);
  steps.compute({.half = half, .carried = Access::overwrite, .work = CallSteps::uses({came}, {})},
                [=, this, block = call.block()](LayerContext& ctx, const LayerTensors& t) {
                  ctx.math.convert(ctx.stream, t.carried[dout()], CallSteps::view(t, came, block));
                });
}

void ResidualBranch::grid_input(GridCall& call) const {
  constexpr auto half = Half::input;
  auto& steps = call.steps;
  const auto sent = call.sent, came = call.came, middles = call.middles;
  const auto din = call.din;
  call.out.input_grad(call.cube ? PhaseTensor(came) : call.dout, middles);
  const Shape of_middle{call.rows, middle_width()}, of_in{call.rows, in_.outputs()};
  steps.reserve(middles, std::max(of_middle.elements(), call.block().elements()));
  steps.compute({.half = half,
                 .saved = Access::read,
                 .carried = Access::update,
                 .work = CallSteps::uses({middles}, begins_middle(LayerCall::backward)),
                 .flops = 2 * flops_at_once(call.shape)},
                [=, this](LayerContext& whole, const LayerTensors& t) {
                  auto ctx = middle_context(whole);
                  middle_grad(ctx, t, t.carried[kDin], CallSteps::view(t, middles, of_middle));
                });
  add_middle(steps, LayerCall::backward, call.shape);
  const auto sums = add_norm_sums(steps, call.shape);
  norm_grad_across(steps, call.shape, sums);
  if (call.cube) steps.reserve(din.number, of_in.elements());
  if (call.cube || query_key_norm_) {
    Phase last{.half = half,
               .weights = params_of(query_key_norm_),
               .saved = Access::read,
               .carried = Access::update,
               .work = CallSteps::uses(norms_across() ? std::vector{sums.all} : std::vector<std::uint32_t>{},
                                       GridCall::travelling(din)),
               .scratch_bytes = query_key_norm_.scratch_bytes(call.rows)};
    steps.compute(std::move(last), [=, this, cube = call.cube](LayerContext& ctx, const LayerTensors& t) {
      norm_in_result_grad(ctx, t, sums);
      if (cube) ctx.math.convert(ctx.stream, CallSteps::view(t, din, of_in), t.carried[kDin]);
    });
  }
  call.in.input_grad(din, sent);
}

void ResidualBranch::grid_weights(GridCall& call) const {
  constexpr auto half = Half::weight;
  auto& steps = call.steps;
  const auto middles = call.middles;
  const auto dout = call.dout, din = call.din;
  const Shape of_middle{call.rows, middle_width()}, block = call.block();
  // Copies a tensor that will be exchanged into a working tensor.
  const auto copy = [cube = call.cube](LayerContext& ctx, const PhaseTensor& to, const LayerTensors& t,
                                       const TensorView& from) {
    if (cube) ctx.math.convert(ctx.stream, CallSteps::view(t, to, from.shape), from);
  };
  if (call.cube) steps.reserve(dout.number, block.elements());
  steps.compute({.half = half,
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses({}, with(GridCall::travelling(dout), {middles}))},
                [=, this](LayerContext& ctx, const LayerTensors& t) {
                  stage_middle(ctx, t, CallSteps::view(t, middles, of_middle));
                  copy(ctx, dout, t, t.carried[kDout]);
                });
  call.out.weight_grad(middles, dout);
  steps.compute({.half = half,
                 .gradients = params_of(out_.projection(), result_norm_),
                 .dy = bool{result_norm_},
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses(call.out.gradient(),
                                         with(with(GridCall::travelling(din), call.out.bias_gradient()), {middles}))},
                [=, this, out = call.out](LayerContext& ctx, const LayerTensors& t) {
                  out.add_gradient(ctx, t, t.carried[kDout]);
                  norm_result_weight_grad(ctx, t);
                  ctx.math.convert(ctx.stream, CallSteps::view(t, middles, block), t.saved[saved_normed(t)]);
                  copy(ctx, din, t, t.carried[kDin]);
                });
  call.in.weight_grad(middles, din);
  steps.compute({.half = half,
                 .weights = params_of(norm_),
                 .gradients = params_of(norm_, query_key_norm_, in_.projection()),
                 .x = true,
                 .saved = Access::read,
                 .carried = Access::read,
                 .work = CallSteps::uses(call.in.gradient(), call.in.bias_gradient())},
                [=, this, in = call.in](LayerContext& ctx, const LayerTensors& t) {
                  in.add_gradient(ctx, t, t.carried[kDin]);
                  norm_weight_grad(ctx, t, t.saved[kStatistics]);
                });
}

// A tile of rows goes through both products alone. It is copied from and to the tensors of all rows, because an exchange begins
// where a tensor begins. As without a grid (residual_inner.cpp), nothing inside is saved: a backward computes the tile again.
void ResidualBranch::grid_row_tile(GridCall& call, comm::Block rows, bool forward) const {
  auto& steps = call.steps;
  const auto [x, in_result, din, result] = call.tile;
  const auto middles = call.middles, sent = call.sent, from = forward ? result : middles;
  const Shape block{rows.count, call.columns}, of_in{rows.count, in_.outputs()}, of_middle{rows.count, middle_width()};
  GridProduct in(call.rooms, in_, config_.tensor(), true, rows.count),
      out(call.rooms, out_, config_.tensor(), false, rows.count);
  for (const auto& [room, shape] : {std::pair{result, block}, {middles, of_middle}, {din, of_in}})
    steps.reserve(room, shape.elements());
  Phase take{.saved = Access::read, .work = CallSteps::uses({}, {x})};
  if (!forward) take.carried = Access::read, take.work.push_back({result, Access::overwrite});
  steps.compute(std::move(take), [=, this, x = x, result = result](LayerContext& ctx, const LayerTensors& t) {
    const auto copy = [&](std::uint32_t to, const TensorView& all) {
      ctx.math.convert(ctx.stream, CallSteps::view(t, to, block), row_slice(all, rows.begin, rows.count));
    };
    copy(x, t.saved[saved_normed(t)]);
    if (!forward) copy(result, t.carried[dout()]);
  });
  in.forward(x, in_result);
  steps.compute({.half = forward ? Half::both : Half::weight, .work = CallSteps::uses({in_result}, {middles})},
                [=, this, in_result = in_result](LayerContext& ctx, const LayerTensors& t) {
                  make_middle(ctx, t, CallSteps::view(t, middles, of_middle), CallSteps::view(t, in_result, of_in));
                });
  if (forward) {
    out.forward(middles, result);
  } else {
    out.weight_grad(middles, result, rows.begin == 0);
    grid_tile_gradient(call, out, out_, {result, block}, rows);
    out.input_grad(result, middles, Half::both);
    steps.compute({.work = CallSteps::uses({middles, in_result}, {din})},
                  [=, this, in_result = in_result, din = din](LayerContext& ctx, const LayerTensors& t) {
                    inner_grad(ctx, CallSteps::view(t, din, of_in), CallSteps::view(t, middles, of_middle),
                               CallSteps::view(t, in_result, of_in));
                  });
    in.weight_grad(x, din, rows.begin == 0);
    grid_tile_gradient(call, in, in_, {din, of_in}, rows);
    in.input_grad(din, middles);
  }
  Phase put{.half = forward ? Half::both : Half::input, .work = CallSteps::uses({from}, {})};
  put.work.push_back({sent, rows.begin == 0 ? Access::overwrite : Access::update});
  steps.compute(std::move(put), [=](LayerContext& ctx, const LayerTensors& t) {
    ctx.math.convert(ctx.stream, part(t.work[sent], rows.begin * block[1], block), CallSteps::view(t, from, block));
  });
}

// `dy`: the working tensor of the gradient of the product's result.
void ResidualBranch::grid_tile_gradient(GridCall& call, const GridProduct& product, const Product& of,
                                        const std::pair<std::uint32_t, Shape>& dy, comm::Block rows) {
  call.steps.compute({.half = Half::weight,
                      .gradients = params_of(of.projection()),
                      .work = CallSteps::uses(with(product.gradient(), {dy.first}), product.bias_gradient())},
                     [=](LayerContext& ctx, const LayerTensors& t) {
                       auto own = t;
                       if (rows.begin != 0) own.accumulate = Accumulate::yes;
                       product.add_gradient(ctx, own, CallSteps::view(t, dy.first, dy.second));
                     });
}

}  // namespace terrace::layers
