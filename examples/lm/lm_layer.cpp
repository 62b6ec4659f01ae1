#include <terrace/examples/lm/lm_layer.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace terrace::lm {
namespace {

constexpr std::int64_t kPackElements = 64;  // the layout's alignment of a layer's tensors

// Tensors that lie side by side, as the one tensor that they are. A single one keeps its own shape.
TensorView joined(std::span<const TensorView> tensors, Shape shape) {
  if (tensors.size() == 1) return tensors[0];
  const std::byte* expected = tensors[0].data;
  for (const TensorView& tensor : tensors) {
    if (tensor.data != expected) {
      throw std::logic_error("a layer's tensors must be packed back to back (each at a multiple of 64 elements)");
    }
    expected += tensor.bytes();
  }
  return {tensors[0].data, tensors[0].dtype, shape};
}

// Calls use(tensor, its part of `whole`), in which the tensors lie one after the other.
template <class F>
void each_part(std::span<const TensorView> tensors, const TensorView& whole, F&& use) {
  std::int64_t first = 0;
  for (const TensorView& tensor : tensors) {
    use(tensor, part(whole, first, tensor.shape));
    first += tensor.elements();
  }
}

bool removes_mean(NormKind kind) {
  switch (kind) {
    case NormKind::layer: return true;
    case NormKind::rms: return false;
  }
  throw std::logic_error("a kind of norm without a case");
}

}  // namespace

std::string name_in_block(const ModelConfig& config, std::int64_t block, std::string_view name) {
  return fmt::format("{}{}.{}", *config.family.get().tensors.block, block, name);
}

// Norm

NormStatistics::NormStatistics(const TensorView& packed)
    : rstd(part(packed, 0, {packed.shape[1]})),
      mean(packed.shape[0] == 2 ? part(packed, packed.shape[1], {packed.shape[1]}) : TensorView{}) {}

NormStatistics NormStatistics::rows(std::int64_t first, std::int64_t count) const {
  NormStatistics some = *this;
  some.rstd = part(rstd, first, {count});
  some.mean = part(mean, first, {count});
  return some;
}

Norm::Norm(std::vector<ParamSpec>& params, std::string_view prefix, const ModelConfig& config)
    : first_(params.size()), centred_(removes_mean(*config.family.get().norm)), eps_(config.norm_eps), dtype_(config.dtype) {
  params.push_back({.name = weight_name(prefix), .shape = {config.hidden}, .init = {InitKind::ones}, .decay = false});
  if (centred_) params.push_back({.name = bias_name(prefix), .shape = {config.hidden}, .init = {}, .decay = false});
}

TensorSpec Norm::statistics(std::int64_t rows) const {
  return {"norm statistics", accumulator_of(dtype_), {centred_ ? 2 : 1, rows}};
}

void Norm::forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView y, TensorView x,
                   const NormStatistics& statistics) const {
  ctx.math.norm(ctx.stream, y, statistics.mean, statistics.rstd, x, weights[first_],
                centred_ ? weights[first_ + 1] : TensorView{}, eps_);
}

void Norm::input_grad(LayerContext& ctx, std::span<const TensorView> weights, TensorView dx, TensorView dy, TensorView x,
                      const NormStatistics& statistics, Accumulate accumulate) const {
  ctx.math.norm_input_grad(ctx.stream, dx, dy, x, weights[first_], statistics.mean, statistics.rstd, accumulate);
}

void Norm::weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, TensorView dy, TensorView x,
                       const NormStatistics& statistics, Accumulate accumulate) const {
  ctx.math.norm_weight_grad(ctx.stream, gradients[first_], centred_ ? gradients[first_ + 1] : TensorView{}, dy, x,
                            statistics.mean, statistics.rstd, accumulate);
}

// Projection

Projection::Projection(std::vector<ParamSpec>& params, const std::string& prefix, const ProjectionParts& parts,
                       std::vector<std::int64_t> outputs, std::int64_t inputs, const Split& split, double init_std,
                       const ModelConfig& config)
    : first_(params.size()),
      out_in_(*config.family.get().matrices == MatrixOrder::out_in),
      bias_(*parts.bias),
      adds_bias_(split.of == Split::Of::outputs || config.tensor.leads()),
      dtype_(config.dtype) {
  const Words& tensors = parts.tensors;
  if ((tensors.size() != 1 && tensors.size() != outputs.size()) || (tensors.size() != 1 && !out_in_)) {
    throw std::logic_error("Projection: " + std::string(*config.family.get().name) + " is not a family of checked()");
  }
  const bool by_outputs = split.of == Split::Of::outputs;
  const std::uint32_t output_dim = out_in_ ? 0 : 1, input_dim = 1 - output_dim;
  std::vector<TensorSplit> bias_splits;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool all = tensors.size() == 1;  // the results lie side by side in one tensor
    const auto its_outputs = all ? outputs : std::vector{outputs[i]};
    const auto whole = std::accumulate(its_outputs.begin(), its_outputs.end(), std::int64_t{0});
    TensorSplit matrix, bias{.dim = 0};
    if (config.tensor.ranks > 1 && by_outputs) {
      matrix = {.dim = output_dim, .parts = its_outputs, .ways = split.ways[i]};
      bias = {.dim = 0, .parts = its_outputs, .ways = split.ways[i]};
    } else if (config.tensor.ranks > 1) {
      matrix = {.dim = input_dim, .parts = {inputs}, .ways = split.ways[0]};
    }
    const Shape shape = part_shape(out_in_ ? Shape{whole, inputs} : Shape{inputs, whole}, matrix);
    outputs_.push_back(shape[output_dim]);
    inputs_ = shape[input_dim];
    params.push_back({.name = weight_name(prefix + std::string(tensors[i])),
                      .shape = shape,
                      .init = {InitKind::normal, init_std},
                      .split = matrix});
    bias_splits.push_back(bias);
  }
  for (std::size_t i = 0; bias_ && i < tensors.size(); ++i) {
    params.push_back({.name = bias_name(prefix + std::string(tensors[i])),
                      .shape = {outputs_[i]},
                      .init = {},
                      .decay = false,
                      .split = bias_splits[i]});
  }
}

Projection Projection::declared(const std::vector<ParamSpec>& params, DType dtype) {
  Projection matrix;
  matrix.first_ = params.size() - 1;
  matrix.outputs_ = {params.back().shape[0]};
  matrix.inputs_ = params.back().shape[1];
  matrix.dtype_ = dtype;
  return matrix;
}

std::int64_t Projection::outputs() const { return std::accumulate(outputs_.begin(), outputs_.end(), std::int64_t{0}); }

bool Projection::adjacent(std::int64_t width) const {
  return std::all_of(outputs_.begin(), outputs_.end() - 1, [&](std::int64_t n) { return n * width % kPackElements == 0; });
}

Projection::Whole Projection::place(ScratchArena& arena, DType dtype) const {
  Whole place;
  if (!adjacent(inputs_)) place.matrix = arena.take(dtype, {outputs(), inputs_});
  if (bias_ && !adjacent(1)) place.bias = arena.take(dtype, {outputs()});
  return place;
}

std::span<const TensorView> Projection::matrices(std::span<const TensorView> tensors) const {
  return tensors.subspan(first_, outputs_.size());
}

std::span<const TensorView> Projection::biases(std::span<const TensorView> tensors) const {
  return tensors.subspan(first_ + outputs_.size(), outputs_.size());
}

Projection::Whole Projection::prepare(LayerContext& ctx, std::span<const TensorView> weights, const Whole& place) const {
  const auto whole = [&](std::span<const TensorView> tensors, const TensorView& place_of_all, Shape shape) {
    if (place_of_all.empty()) return joined(tensors, shape);
    each_part(tensors, place_of_all,
              [&](const TensorView& tensor, const TensorView& its_place) { ctx.math.convert(ctx.stream, its_place, tensor); });
    return place_of_all;
  };
  return {whole(matrices(weights), place.matrix, {outputs(), inputs_}),
          bias_ && adds_bias_ ? whole(biases(weights), place.bias, {outputs()}) : TensorView{}};
}

void Projection::forward(LayerContext& ctx, const Whole& weights, TensorView y, TensorView x, Accumulate accumulate) const {
  ctx.math.matmul(ctx.stream, y, x, Transpose::no, weights.matrix, out_in_ ? Transpose::yes : Transpose::no, weights.bias,
                  accumulate);
}

void Projection::input_grad(LayerContext& ctx, const Whole& weights, TensorView dx, TensorView dy) const {
  ctx.math.matmul(ctx.stream, dx, dy, Transpose::no, weights.matrix, out_in_ ? Transpose::no : Transpose::yes);
}

void Projection::weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, const Whole& place, TensorView dy,
                             TensorView x, Accumulate accumulate) const {
  // `compute(to, accumulate)` makes the gradient of all tensors at once.
  const auto make = [&](std::span<const TensorView> tensors, const TensorView& place_of_all, Shape shape, auto&& compute) {
    if (place_of_all.empty()) return compute(joined(tensors, shape), accumulate);
    compute(place_of_all, Accumulate::no);
    each_part(tensors, place_of_all, [&](const TensorView& tensor, const TensorView& its_place) {
      ctx.math.convert(ctx.stream, tensor, its_place, accumulate);
    });
  };
  if (bias_ && adds_bias_) {
    make(biases(gradients), place.bias, {outputs()},
         [&](const TensorView& to, Accumulate how) { ctx.math.bias_grad(ctx.stream, to, dy, how); });
  } else if (bias_ && accumulate == Accumulate::no) {
    for (const TensorView& part_of_sum : biases(gradients)) ctx.math.zero(ctx.stream, part_of_sum);
  }
  make(matrices(gradients), place.matrix, {outputs(), inputs_}, [&](const TensorView& to, Accumulate how) {
    const TensorView &rows = out_in_ ? dy : x, &columns = out_in_ ? x : dy;
    ctx.math.matmul(ctx.stream, to, rows, Transpose::yes, columns, Transpose::no, {}, how);
  });
}

// LmLayer

void LmLayer::fail(const std::string& what) const { throw std::logic_error(name_ + ": " + what); }

void LmLayer::check(const char* what, const TensorView& view, DType dtype, Shape shape) const {
  if (view.empty()) fail(std::string(what) + " is missing");
  if (view.dtype != dtype || view.elements() != shape.elements()) {
    fail(std::string(what) + " is " + std::string(terrace::name_of(view.dtype)) + to_string(view.shape) + ", not " +
         std::string(terrace::name_of(dtype)) + to_string(shape));
  }
}

void LmLayer::check_all(const char* what, std::span<const TensorView> views, const std::vector<TensorSpec>& specs) const {
  if (views.size() != specs.size()) {
    fail(std::to_string(views.size()) + " " + what + " tensors, not " + std::to_string(specs.size()));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) check(specs[i].name.c_str(), views[i], specs[i].dtype, specs[i].shape);
}

void LmLayer::check_weights(std::span<const TensorView> weights) const {
  if (weights.size() != params_.size()) {
    fail(std::to_string(weights.size()) + " weights, not " + std::to_string(params_.size()));
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    check(params_[i].name.c_str(), weights[i], config_.dtype, params_[i].shape);
    if (weights[i].shape != params_[i].shape) fail(params_[i].name + " has a wrong shape");
  }
}

ParamSpec LmLayer::table_of(const ModelConfig& config, std::string_view name) {
  TensorSplit split;
  if (config.tensor.ranks > 1) split = {.dim = 0, .parts = {config.vocab}, .ways = config.tensor.ranks};
  return {.name = weight_name(name),
          .shape = part_shape({config.vocab, config.hidden}, split),
          .init = {InitKind::normal, config.init_std()},
          .split = split};
}

void LmLayer::zero_rest(LayerContext& ctx, const TensorView& table) const {
  const auto rows = config_.vocab_here().count;
  if (rows < table.shape[0]) ctx.math.zero(ctx.stream, row_slice(table, rows, table.shape[0] - rows));
}

Accumulate LmLayer::begin_residual(LayerContext& ctx, TensorView to, TensorView from) const {
  if (!config_.tensor.leads()) return Accumulate::no;
  ctx.math.convert(ctx.stream, to, from);
  return Accumulate::yes;
}

void LmLayer::check_forward(const LayerContext& ctx, const LayerTensors& t, Ends ends) const {
  if (ctx.shape.batch < 1 || ctx.shape.seq < 1) fail("the micro-batch is empty");
  const Shape rows{ctx.shape.tokens(), config_.hidden};
  check_weights(t.weights);
  if (ends.x) check("x", t.x, config_.dtype, rows);
  if (ends.y) check("y", t.y, config_.dtype, rows);
  check_all("saved", t.saved, saved(ctx.shape));
}

void LmLayer::check_backward(const LayerContext& ctx, const LayerTensors& t, Half half, Ends ends) const {
  if (ctx.shape.batch < 1 || ctx.shape.seq < 1) fail("the micro-batch is empty");
  const Shape rows{ctx.shape.tokens(), config_.hidden};
  check_weights(t.weights);
  if (ends.x) check("x", t.x, config_.dtype, rows);
  if (ends.y) check("dy", t.dy, config_.dtype, rows);
  if (ends.x && has(half, Half::input)) check("dx", t.dx, config_.dtype, rows);
  check_all("saved", t.saved, saved(ctx.shape));
  check_all("carried", t.carried, carried(ctx.shape));
  if (!has(half, Half::weight)) return;
  if (t.gradients.size() != params_.size()) fail("each parameter needs a gradient");
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const DType dtype = t.gradients[i].dtype;
    if (dtype != config_.dtype && dtype != accumulator_of(config_.dtype)) fail("the gradients have a wrong dtype");
    check(params_[i].name.c_str(), t.gradients[i], dtype, params_[i].shape);
  }
}

void LmLayer::check_decode(const LayerContext& ctx, std::span<const TensorView> weights, CacheViews cache_views,
                           std::int64_t position) const {
  if (ctx.shape.tokens() != 1) fail("generation needs exactly one position of one sequence");
  if (position < 0 || position >= config_.seq_len) {
    fail("position " + std::to_string(position) + " is beyond seq_len " + std::to_string(config_.seq_len));
  }
  check_weights(weights);
  if (cache_views.size() != cache(1).size()) fail("the cache has a wrong number of tensors");
}

}  // namespace terrace::lm
