#include <terrace/parallel/layers/parts/grid_product.h>

#include <utility>

namespace terrace::layers {

GridProduct::GridProduct(const GridRooms& rooms, const Product& product, const TensorParallel& tensor, bool first,
                         std::int64_t rows)
    : steps_(rooms.steps),
      rooms_(rooms),
      projection_(product.projection()),
      adapters_(product.low_rank()),
      cut_(tensor, first),
      cube_(tensor.grid.cube),
      side_(tensor.grid.side),
      rows_(rows),
      inputs_(projection_.inputs() * (cube_ ? side_ : 1)),
      outputs_(projection_.outputs()),
      of_adapters_(product.adapters(0)) {
  projection_.name_params(params_);
}

Shape GridProduct::matrix() const { return projection_.out_in() ? Shape{outputs_, inputs_} : Shape{inputs_, outputs_}; }

double GridProduct::flops() const { return 2.0 * static_cast<double>(rows_ * side_) * static_cast<double>(elements()); }

TensorView GridProduct::bias(const LayerTensors& t, bool here) const {
  return here && projection_.has_bias() ? CallSteps::view(t, rooms_.bias, {outputs_}) : TensorView{};
}

std::vector<std::uint32_t> GridProduct::with_bias(std::vector<std::uint32_t> rooms) const {
  if (projection_.has_bias()) rooms.push_back(rooms_.bias);
  return rooms;
}

std::vector<std::uint32_t> GridProduct::with_block(std::vector<std::uint32_t> rooms) const {
  if (projection_.out_in()) rooms.push_back(rooms_.block);
  return rooms;
}

std::vector<std::uint32_t> GridProduct::bias_gradient() const {
  return projection_.has_bias() && !adapters_ ? std::vector{rooms_.bias_gradient} : std::vector<std::uint32_t>{};
}
std::vector<std::uint32_t> GridProduct::gradient() const {
  return adapters_ ? std::vector<std::uint32_t>{} : std::vector{rooms_.gradient};
}

void GridProduct::stage(Half half) {
  const auto own = elements() / (cube_ ? side_ : 1);
  steps_.reserve(rooms_.own, own);
  if (projection_.has_bias()) steps_.reserve(rooms_.bias, outputs_);
  steps_.compute({.half = half, .weights = params_, .work = CallSteps::uses({}, with_bias({rooms_.own}))},
                 [this_ = *this, own](LayerContext& ctx, const LayerTensors& t) {
                   this_.projection_.pack(ctx, t.weights, {CallSteps::view(t, this_.rooms_.own, {own}), this_.bias(t, true)});
                 });
}

mesh::Members GridProduct::members(Axis axis) { return {.axes = axis, .lane = Lane::tensor}; }

// Each piece has some of the block's inputs: either rows, or columns, which are side by side in the block.
void GridProduct::move_pieces(LayerContext& ctx, const TensorView& block, const TensorView& pieces, bool join) const {
  const auto each = inputs_ / side_;
  for (std::int64_t d = 0; d < side_; ++d) {
    const auto piece = part(pieces, d * outputs_ * each, {outputs_, each});
    join ? ctx.math.columns(ctx.stream, block, d * each, piece, 0, each)
         : ctx.math.columns(ctx.stream, piece, 0, block, d * each, each);
  }
}

// Gathers the other ranks' rows and weights, multiplies once, and scatters the parts of the result: y from x, or dx from dy.
void GridProduct::in_cube(Half half, LowRank::Of of, std::uint32_t from, PhaseTensor to) {
  const bool forward = of == LowRank::Of::x;
  const auto read = forward ? inputs_ : outputs_, written = forward ? outputs_ : inputs_, all = rows_ * side_;
  steps_.exchange(half, all_gather(members(forward ? cut_.out : cut_.in), from, rooms_.x, rows_ * read, side_));
  steps_.exchange(half, all_gather(members(Axis::depth), rooms_.own, rooms_.w, elements() / side_, side_));
  if (projection_.out_in()) steps_.reserve(rooms_.block, elements());
  const std::vector gathered{rooms_.x, rooms_.w};
  steps_.compute({.half = half,
                  .work = CallSteps::uses(forward ? with_bias(gathered) : gathered, with_block({rooms_.part})),
                  .flops = flops()},
                 [=, this_ = *this](LayerContext& ctx, const LayerTensors& t) {
                   auto weights = CallSteps::view(t, this_.rooms_.w, this_.matrix());
                   if (const auto pieces = weights; this_.projection_.out_in()) {
                     weights = CallSteps::view(t, this_.rooms_.block, this_.matrix());
                     this_.move_pieces(ctx, weights, pieces, true);
                   }
                   const auto result = CallSteps::view(t, this_.rooms_.part, {all, written});
                   const auto rows = CallSteps::view(t, this_.rooms_.x, {all, read});
                   if (!forward) return this_.projection_.input_grad(ctx, {weights, {}}, result, rows);
                   const bool adds_bias = this_.cut_.place(this_.cut_.in) == 0;
                   this_.projection_.forward(ctx, {weights, this_.bias(t, adds_bias)}, result, rows);
                 });
  steps_.exchange(half, reduce_scatter(members(forward ? cut_.in : cut_.out), rooms_.part, to.number, rows_ * written, side_));
  adapt(half, of, rooms_.x, to);
}

void GridProduct::forward(std::uint32_t x, PhaseTensor y) {
  constexpr auto half = Half::both;
  stage(half);
  if (cube_) return in_cube(half, LowRank::Of::x, x, y);
  if (y.of == PhaseTensor::Of::work) steps_.reserve(y.number, rows_ * outputs_);
  for (std::uint32_t l = 0; l < side_; ++l) {
    steps_.exchange(half, broadcast(members(cut_.out), x, rooms_.x, rows_ * inputs_, l));
    steps_.exchange(half, broadcast(members(cut_.in), rooms_.own, rooms_.w, elements(), l));
    const std::vector read{x, rooms_.x, rooms_.own, rooms_.w};
    Phase phase{.work = CallSteps::uses(l == 0 ? with_bias(read) : read, {}), .flops = flops() / static_cast<double>(side_)};
    phase.use(y, l == 0 && y.of == PhaseTensor::Of::work ? Access::overwrite : Access::update);
    steps_.compute(std::move(phase), [this_ = *this, x, y, l](LayerContext& ctx, const LayerTensors& t) {
      const auto from = this_.cut_.place(this_.cut_.out) == l ? x : this_.rooms_.x;
      const auto weights = this_.cut_.place(this_.cut_.in) == l ? this_.rooms_.own : this_.rooms_.w;
      this_.projection_.forward(ctx, {CallSteps::view(t, weights, this_.matrix()), this_.bias(t, l == 0)},
                                CallSteps::view(t, y, {this_.rows_, this_.outputs_}),
                                CallSteps::view(t, from, {this_.rows_, this_.inputs_}),
                                l == 0 ? Accumulate::no : Accumulate::yes);
    });
  }
  adapt(half, LowRank::Of::x, x, y);
}

void GridProduct::narrow(Half half, LowRank::Of of, PhaseTensor from, std::uint32_t to) {
  const bool of_x = of == LowRank::Of::x;
  const Shape whole{rows_ * (cube_ ? side_ : 1), of_x ? inputs_ : outputs_}, narrow{whole[0], adapters_.columns()};
  Phase phase{.half = half,
              .weights = of_adapters_,
              .work = CallSteps::uses({}, {rooms_.narrow}),
              .scratch_bytes = adapters_.matrix_bytes()};
  phase.use(from, Access::read);
  steps_.compute(std::move(phase), [=, to = rooms_.narrow, &adapters = adapters_](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    adapters.narrow(ctx, t.weights, adapters.place(arena, 0), of, CallSteps::view(t, to, narrow),
                    CallSteps::view(t, from, whole));
  });
  const auto axis = cube_ && of_x ? cut_.in : cut_.out;
  const auto elements = rows_ * narrow[1];
  steps_.exchange(half, cube_ ? reduce_scatter(members(axis), rooms_.narrow, to, elements, side_)
                              : all_reduce(members(axis), rooms_.narrow, to, elements));
}

void GridProduct::adapt(Half half, LowRank::Of of, PhaseTensor from, PhaseTensor to) {
  if (!adapters_) return;
  const auto between = of == LowRank::Of::x ? rooms_.u : rooms_.du;
  narrow(half, of, from, between);
  const Shape whole{rows_, of == LowRank::Of::x ? outputs_ : inputs_}, narrow{rows_, adapters_.columns()};
  Phase phase{
      .half = half, .weights = of_adapters_, .work = CallSteps::uses({between}, {}), .scratch_bytes = adapters_.matrix_bytes()};
  phase.use(to, Access::update);
  steps_.compute(std::move(phase), [=, &adapters = adapters_](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    adapters.widen(ctx, t.weights, adapters.place(arena, 0), of, CallSteps::view(t, to, whole),
                   CallSteps::view(t, between, narrow));
  });
}

void GridProduct::adapter_gradients(std::uint32_t x, PhaseTensor dy, bool first_rows) {
  narrow(Half::weight, LowRank::Of::x, cube_ ? rooms_.x : x, rooms_.u);
  narrow(Half::weight, LowRank::Of::dy, cube_ ? PhaseTensor(rooms_.part) : dy, rooms_.du);
  Phase phase{.half = Half::weight,
              .gradients = of_adapters_,
              .work = CallSteps::uses({x, rooms_.u, rooms_.du}, {}),
              .scratch_bytes = measured([&](ScratchArena& arena) { return adapters_.place_gradient(arena, 0); })};
  phase.use(dy, Access::read);
  const Shape narrow{rows_, adapters_.columns()}, of_x{rows_, inputs_}, of_dy{rows_, outputs_};
  steps_.compute(std::move(phase), [=, rooms = rooms_, &adapters = adapters_](LayerContext& ctx, const LayerTensors& t) {
    ScratchArena arena(ctx.scratch);
    const auto room = adapters.place_gradient(arena, 0);
    adapters.gradients(ctx, t.gradients, room, CallSteps::view(t, rooms.u, narrow), CallSteps::view(t, rooms.du, narrow),
                       CallSteps::view(t, dy, of_dy), CallSteps::view(t, x, of_x), first_rows ? t.accumulate : Accumulate::yes);
  });
}

void GridProduct::input_grad(PhaseTensor dy, std::uint32_t dx, Half half) {
  stage(half);
  if (cube_) return in_cube(half, LowRank::Of::dy, dy.number, dx);
  for (std::uint32_t l = 0; l < side_; ++l) {
    steps_.exchange(half, broadcast(members(cut_.in), rooms_.own, rooms_.w, elements(), l));
    Phase phase{.half = half,
                .work = CallSteps::uses({rooms_.own, rooms_.w}, {rooms_.part}),
                .flops = flops() / static_cast<double>(side_)};
    phase.use(dy, Access::read);
    steps_.compute(std::move(phase), [this_ = *this, dy, l](LayerContext& ctx, const LayerTensors& t) {
      const auto weights = this_.cut_.place(this_.cut_.in) == l ? this_.rooms_.own : this_.rooms_.w;
      this_.projection_.input_grad(ctx, {CallSteps::view(t, weights, this_.matrix()), {}},
                                   CallSteps::view(t, this_.rooms_.part, {this_.rows_, this_.inputs_}),
                                   CallSteps::view(t, dy, {this_.rows_, this_.outputs_}));
    });
    // In 2D, the ranks of a row have the blocks of x as well as those of y, so dx is reduced over the row.
    steps_.exchange(half, reduce(members(cut_.out), rooms_.part, dx, rows_ * inputs_, l));
  }
  adapt(half, LowRank::Of::dy, dy, dx);
}

// With adapters, W is frozen.
void GridProduct::weight_grad(std::uint32_t x, PhaseTensor dy, bool first_rows) {
  constexpr auto half = Half::weight;
  if (projection_.has_bias()) steps_.reserve(rooms_.bias_gradient, outputs_);
  if (cube_) {
    steps_.exchange(half, all_gather(members(cut_.out), x, rooms_.x, rows_ * inputs_, side_));
    steps_.exchange(half, all_gather(members(cut_.in), dy.number, rooms_.part, rows_ * outputs_, side_));
    if (adapters_) return adapter_gradients(x, dy, first_rows);
    steps_.reserve(rooms_.pieces, elements());
    if (projection_.out_in()) steps_.reserve(rooms_.sum, elements());
    std::vector written{rooms_.pieces};
    if (projection_.out_in()) written.push_back(rooms_.sum);
    steps_.compute(
        {.half = half, .work = CallSteps::uses({rooms_.x, rooms_.part}, written), .flops = flops()},
        [this_ = *this](LayerContext& ctx, const LayerTensors& t) {
          const auto all = this_.rows_ * this_.side_;
          const auto block =
              CallSteps::view(t, this_.projection_.out_in() ? this_.rooms_.sum : this_.rooms_.pieces, this_.matrix());
          this_.projection_.gradient_product(ctx, block, CallSteps::view(t, this_.rooms_.part, {all, this_.outputs_}),
                                             CallSteps::view(t, this_.rooms_.x, {all, this_.inputs_}), Accumulate::no);
          if (this_.projection_.out_in())
            this_.move_pieces(ctx, block, CallSteps::view(t, this_.rooms_.pieces, this_.matrix()), false);
        });
    steps_.exchange(half, reduce_scatter(members(Axis::depth), rooms_.pieces, rooms_.gradient, elements() / side_, side_));
    return;
  }
  if (adapters_) return adapter_gradients(x, dy, first_rows);
  for (std::uint32_t l = 0; l < side_; ++l) {
    steps_.exchange(half, broadcast(members(cut_.out), x, rooms_.x, rows_ * inputs_, l));
    Phase phase{
        .half = half, .work = CallSteps::uses({x, rooms_.x}, {rooms_.sum}), .flops = flops() / static_cast<double>(side_)};
    phase.use(dy, Access::read);
    steps_.compute(std::move(phase), [this_ = *this, x, dy, l](LayerContext& ctx, const LayerTensors& t) {
      const auto from = this_.cut_.place(this_.cut_.out) == l ? x : this_.rooms_.x;
      this_.projection_.gradient_product(ctx, CallSteps::view(t, this_.rooms_.sum, this_.matrix()),
                                         CallSteps::view(t, dy, {this_.rows_, this_.outputs_}),
                                         CallSteps::view(t, from, {this_.rows_, this_.inputs_}), Accumulate::no);
    });
    steps_.exchange(half, reduce(members(cut_.in), rooms_.sum, rooms_.gradient, elements(), l));
  }
}

void GridProduct::add_gradient(LayerContext& ctx, const LayerTensors& t, TensorView dy) const {
  if (adapters_) return;
  TensorView bias;
  if (projection_.has_bias()) {
    bias = CallSteps::view(t, rooms_.bias_gradient, {outputs_});
    ctx.math.bias_grad(ctx.stream, bias, dy, Accumulate::no);
  }
  projection_.add_gradient(ctx, t.gradients, {CallSteps::view(t, rooms_.gradient, {elements() / (cube_ ? side_ : 1)}), bias},
                           t.accumulate);
}

}  // namespace terrace::layers
