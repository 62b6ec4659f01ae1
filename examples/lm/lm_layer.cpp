#include <terrace/examples/lm/lm_layer.h>

#include <numeric>

namespace terrace::lm {
namespace {

constexpr std::int64_t kPackElements = 64;  // the layout's alignment of a layer's tensors

}  // namespace

std::string name_in_block(const ModelConfig& config, std::int64_t block, const char* gpt2, const char* llama) {
  return config.family == Family::gpt2 ? "transformer.h." + std::to_string(block) + "." + gpt2
                                       : "model.layers." + std::to_string(block) + "." + llama;
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

Norm::Norm(std::vector<ParamSpec>& params, const std::string& prefix, const ModelConfig& config)
    : first_(params.size()), centred_(config.family == Family::gpt2), eps_(config.norm_eps), dtype_(config.dtype) {
  params.push_back({.name = prefix + ".weight", .shape = {config.hidden}, .init = {InitKind::ones}, .decay = false});
  if (centred_) params.push_back({.name = prefix + ".bias", .shape = {config.hidden}, .init = {}, .decay = false});
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

Projection::Projection(std::vector<ParamSpec>& params, const std::vector<Part>& parts, std::int64_t inputs, double init_std,
                       const ModelConfig& config)
    : first_(params.size()),
      inputs_(inputs),
      out_in_(config.family != Family::gpt2),
      bias_(config.family == Family::gpt2),
      dtype_(config.dtype) {
  if (!out_in_ && parts.size() != 1) throw std::logic_error("Projection: matrices stored [in, out] cannot be joined");
  for (const auto& [name, outputs] : parts) {
    outputs_.push_back(outputs);
    params.push_back({.name = name + ".weight",
                      .shape = out_in_ ? Shape{outputs, inputs} : Shape{inputs, outputs},
                      .init = {InitKind::normal, init_std}});
  }
  if (bias_) params.push_back({.name = parts[0].name + ".bias", .shape = {outputs_[0]}, .init = {}, .decay = false});
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

bool Projection::adjacent() const {
  return std::all_of(outputs_.begin(), outputs_.end() - 1, [&](std::int64_t n) { return n * inputs_ % kPackElements == 0; });
}

TensorView Projection::place_weights(ScratchArena& arena) const {
  return adjacent() ? TensorView{} : arena.take(dtype_, {outputs(), inputs_});
}

TensorView Projection::place_gradient(ScratchArena& arena) const {
  return adjacent() ? TensorView{} : arena.take(accumulator_of(dtype_), {outputs(), inputs_});
}

// The tensors as the one matrix that they are.
TensorView Projection::joined(std::span<const TensorView> tensors) const {
  const TensorView& whole = tensors[first_];
  if (outputs_.size() == 1) return whole;
  const std::byte* expected = whole.data;
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const TensorView& tensor = tensors[first_ + i];
    if (tensor.data != expected) {
      throw std::logic_error("a layer's tensors must be packed back to back (each at a multiple of 64 elements)");
    }
    expected += tensor.bytes();
  }
  return {whole.data, whole.dtype, {outputs(), inputs_}};
}

TensorView Projection::prepare(LayerContext& ctx, std::span<const TensorView> weights, TensorView place) const {
  if (adjacent()) return joined(weights);
  for (std::size_t i = 0, row = 0; i < outputs_.size(); row += static_cast<std::size_t>(outputs_[i]), ++i) {
    ctx.math.convert(ctx.stream, row_slice(place, static_cast<std::int64_t>(row), outputs_[i]), weights[first_ + i]);
  }
  return place;
}

void Projection::forward(LayerContext& ctx, std::span<const TensorView> weights, TensorView matrix, TensorView y, TensorView x,
                         Accumulate accumulate) const {
  ctx.math.matmul(ctx.stream, y, x, Transpose::no, matrix, out_in_ ? Transpose::yes : Transpose::no,
                  bias_ ? weights[first_ + 1] : TensorView{}, accumulate);
}

void Projection::input_grad(LayerContext& ctx, TensorView matrix, TensorView dx, TensorView dy) const {
  ctx.math.matmul(ctx.stream, dx, dy, Transpose::no, matrix, out_in_ ? Transpose::no : Transpose::yes);
}

void Projection::weight_grad(LayerContext& ctx, std::span<const TensorView> gradients, TensorView place, TensorView dy,
                             TensorView x, Accumulate accumulate) const {
  if (bias_) ctx.math.bias_grad(ctx.stream, gradients[first_ + 1], dy, accumulate);
  if (!out_in_) {
    ctx.math.matmul(ctx.stream, gradients[first_], x, Transpose::yes, dy, Transpose::no, {}, accumulate);
    return;
  }
  if (adjacent()) {
    ctx.math.matmul(ctx.stream, joined(gradients), dy, Transpose::yes, x, Transpose::no, {}, accumulate);
    return;
  }
  ctx.math.matmul(ctx.stream, place, dy, Transpose::yes, x, Transpose::no);
  for (std::size_t i = 0, row = 0; i < outputs_.size(); row += static_cast<std::size_t>(outputs_[i]), ++i) {
    ctx.math.convert(ctx.stream, gradients[first_ + i], row_slice(place, static_cast<std::int64_t>(row), outputs_[i]),
                     accumulate);
  }
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
