#include <algorithm>
#include <memory>
#include <stdexcept>

#include <terrace/parallel/layers/parts/transformer_layer.h>
#include <terrace/parallel/model/tensor_edges.h>

namespace terrace::layers {
namespace {

// Whether the phase gets a tile of the parameter.
bool is_tile(const LayerContext& ctx, const ParamSpec& param) { return param.tiles > 1 && ctx.phase != kAllPhases; }

// Tiles of one parameter may differ by one row or column.
Shape shape_of_a_tile(const ParamSpec& param, const TensorView& tile) {
  return param.tile_dim == 0 ? Shape{tile.shape[0], param.shape[1]} : Shape{param.shape[0], tile.shape[1]};
}

}  // namespace

void TransformerLayer::fail(const std::string& what) const { throw std::logic_error(name_ + ": " + what); }

// If there are adapters, only they are trained.
std::vector<ParamSpec> TransformerLayer::params() const {
  auto all = params_;
  for (auto& param : all) param.frozen = config_.adapters.rank != 0 && !is_adapter(param.name);
  return all;
}

void TransformerLayer::check(const char* what, const TensorView& view, DType dtype, Shape shape) const {
  if (view.empty()) fail(std::string(what) + " is missing");
  if (view.dtype != dtype || view.elements() != shape.elements())
    fail(std::string(what) + " is " + std::string(terrace::name_of(view.dtype)) + to_string(view.shape) + ", not " +
         std::string(terrace::name_of(dtype)) + to_string(shape));
}

void TransformerLayer::check_all(const LayerContext& ctx, const char* what, Tensors views,
                                 const std::vector<TensorSpec>& specs) const {
  if (views.size() != specs.size())
    fail(std::to_string(views.size()) + " " + what + " tensors, not " + std::to_string(specs.size()));
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (!may_lack(ctx, views[i])) check(specs[i].name.c_str(), views[i], specs[i].dtype, specs[i].shape);
}

void TransformerLayer::check_weights(const LayerContext& ctx, Tensors weights) const {
  if (weights.size() != params_.size())
    fail(std::to_string(weights.size()) + " weights, not " + std::to_string(params_.size()));
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (may_lack(ctx, weights[i])) continue;
    auto shape = params_[i].shape;
    if (is_tile(ctx, params_[i])) shape = shape_of_a_tile(params_[i], weights[i]);
    check(params_[i].name.c_str(), weights[i], config_.dtype, shape);
    if (weights[i].shape != shape) fail(params_[i].name + " has a wrong shape");
  }
}

ParamSpec TransformerLayer::table_of(const Transformer& config, std::string_view name) {
  model::TensorSplit split;
  if (config.tensor().ranks > 1) split = {.dim = 0, .parts = {config.vocab}, .ways = config.tensor().ranks};
  return {.name = weight_name(name),
          .shape = model::part_shape({config.vocab, config.hidden}, split),
          .init = {InitKind::normal, config.init_std},
          .split = split,
          .tiles = config.vocab_tiles};
}

TensorView TransformerLayer::tile(const LayerContext& ctx, const TensorView& table, std::uint32_t number) const {
  if (tiles() == 1 || ctx.phase != kAllPhases) return table;
  const auto [begin, count] = comm::block_of(table.shape[0], static_cast<int>(number), static_cast<int>(tiles()));
  return row_slice(table, begin, count);
}

comm::Block TransformerLayer::has_token(std::uint32_t number) const {
  const auto here = config_.vocab_here();
  const auto [begin, count] = comm::block_of(table_rows(), static_cast<int>(number), static_cast<int>(tiles()));
  return {here.begin + begin, std::min(count, here.count - begin)};
}

TensorView TransformerLayer::rows_with_token(const LayerContext& ctx, const TensorView& table, std::uint32_t number) const {
  return row_slice(tile(ctx, table, number), 0, has_token(number).count);
}

void TransformerLayer::zero_rest(LayerContext& ctx, const TensorView& gradient, std::uint32_t number) const {
  const auto of_tile = tile(ctx, gradient, number);
  const auto rows = has_token(number).count;
  if (rows < of_tile.shape[0]) ctx.math.zero(ctx.stream, row_slice(of_tile, rows, of_tile.shape[0] - rows));
}

Accumulate TransformerLayer::begin_residual(LayerContext& ctx, TensorView to, TensorView from) const {
  if (!config_.tensor().leads()) return Accumulate::no;
  ctx.math.convert(ctx.stream, to, from);
  return Accumulate::yes;
}

void TransformerLayer::describe(CallSteps& steps, LayerCall call, BatchShape shape) const {
  const auto own = std::make_shared<const LayerFacts>(facts(shape));
  steps.before([this, call, own](LayerContext& ctx, const LayerTensors& t) { check_call(ctx, t, call, *own); });
  describe_call(steps, call, shape);
  if (on_shares()) return;
  add_tensor_edges(steps, call, shape,
                   {.tensor = config_.tensor(),
                    .dtype = config_.dtype,
                    .width = config_.hidden,
                    .has_x = ends_.x,
                    .has_y = ends_.y,
                    .backward_reads_x = own->keeps_input,
                    .sums_y = !adds_up()});
}

void TransformerLayer::check_call(const LayerContext& ctx, const LayerTensors& t, LayerCall call,
                                  const LayerFacts& facts) const {
  const bool decode = call == LayerCall::decode, backward = call == LayerCall::backward && !ctx.evaluate;
  const Shape rows{decode ? 1 : rows_of(ctx.shape), config_.hidden};
  const auto check_rows = [&](const char* what, const TensorView& view, bool exists) {
    if (exists && !may_lack(ctx, view)) check(what, view, config_.dtype, rows);
  };
  if (decode && ctx.shape.tokens() != 1) fail("generation needs exactly one position of one sequence");
  if (decode && (ctx.position < 0 || ctx.position >= config_.seq_len))
    fail("position " + std::to_string(ctx.position) + " is beyond seq_len " + std::to_string(config_.seq_len));
  if (ctx.shape.batch < 1 || ctx.shape.seq < 1) fail("the micro-batch is empty");
  check_weights(ctx, t.weights);
  check_rows("x", t.x, ends_.x && (!backward || facts.keeps_input));
  if (!backward) check_rows("y", t.y, ends_.y);
  if (decode && t.saved.size() != cache(1).size()) fail("the cache has a wrong number of tensors");
  if (!decode) check_all(ctx, "saved", t.saved, facts.saved);
  if (!backward) return;
  check_rows("dy", t.dy, ends_.y);
  check_rows("dx", t.dx, ends_.x && has(ctx.half, Half::input));
  check_all(ctx, "carried", t.carried, facts.carried);
  if (has(ctx.half, Half::weight)) check_gradients(ctx, t.gradients);
}

void TransformerLayer::check_gradients(const LayerContext& ctx, Tensors gradients) const {
  if (gradients.size() != params_.size()) fail("each parameter needs a gradient");
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (gradients[i].empty()) continue;  // frozen, or not of this phase
    const DType dtype = gradients[i].dtype;
    if (dtype != config_.dtype && dtype != accumulator_of(config_.dtype)) fail("the gradients have a wrong dtype");
    check(params_[i].name.c_str(), gradients[i], dtype, is_tile(ctx, params_[i]) ? gradients[i].shape : params_[i].shape);
  }
}

}  // namespace terrace::layers
