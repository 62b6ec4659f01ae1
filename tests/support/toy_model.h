// The smallest model with everything that the engine must handle: an embedding, residual layers that save and carry tensors,
// and a loss head tied to the embedding. Deterministic, small, and sized by the test.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/math/float8.h>
#include <terrace/core/math/philox.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::toy {

struct Sizes {
  std::int64_t width = 64, vocab = 256, blocks = 3;
  DType dtype = DType::fp32;
  bool tied = true;
  bool skips = false;   // block i's result is added to the input of block n − 1 − i
  bool phases = false;  // each product of a block is a phase of its call
  bool float8 = false;  // a block's products multiply numbers of 8 bits
};

class Embed : public Layer {
 public:
  explicit Embed(Sizes s) : s_(s) {}
  std::string name() const override { return "embed"; }
  std::vector<ParamSpec> params() const override {
    return {{"table", {s_.vocab, s_.width}, {InitKind::normal, 0.1}, true, false}};
  }
  LayerFacts facts(BatchShape) const override { return {}; }
  void describe(CallSteps& steps, LayerCall call, BatchShape) const override {
    if (call == LayerCall::forward)
      steps.compute(
          [](LayerContext& c, const LayerTensors& t) { c.math.embed(c.stream, t.y, c.tokens, t.weights[0], {}, c.shape.seq); });
    if (call == LayerCall::backward)
      steps.compute([](LayerContext& c, const LayerTensors& t) {
        if (has(c.half, Half::weight))
          c.math.embed_grad(c.stream, t.gradients[0], {}, c.tokens, t.dy, c.shape.seq, t.accumulate);
      });
  }

 private:
  Sizes s_;
};

// y = h + gelu(h·A)·B with h = x, or x + skip. Saves h·A, and h if it is not x; carries the gradient of h·A.
class Block : public Layer {
 public:
  Block(Sizes s, std::int64_t i) : s_(s), i_(i) {}
  std::optional<std::uint32_t> skips_from() const {
    const auto from = s_.blocks - 1 - i_;  // block
    if (!s_.skips || from + 1 >= i_) return std::nullopt;
    return static_cast<std::uint32_t>(1 + from);
  }
  std::string name() const override { return "blocks." + std::to_string(i_); }
  std::vector<ParamSpec> params() const override {
    const auto n = name();
    return {{n + ".a", {2 * s_.width, s_.width}, {InitKind::normal, 0.1}, true, false},
            {n + ".b", {s_.width, 2 * s_.width}, {InitKind::normal, 0.1}, true, false},
            {n + ".bias", {s_.width}, {InitKind::zeros, 0}, false, false}};
  }
  LayerFacts facts(BatchShape b) const override {
    LayerFacts all{.saved = {{"u", s_.dtype, {b.tokens(), 2 * s_.width}}},
                   .carried = {{"du", s_.dtype, {b.tokens(), 2 * s_.width}}, {"g", s_.dtype, {b.tokens(), 2 * s_.width}}},
                   .forward_flops = 8.0 * static_cast<double>(b.tokens() * s_.width * s_.width),
                   .keeps_input = !skips_from(),
                   .skips_from = skips_from()};
    if (skips_from()) all.saved.push_back({"h", s_.dtype, {b.tokens(), s_.width}});
    return all;
  }
  void describe(CallSteps& steps, LayerCall call, BatchShape b) const override {
    if (call != LayerCall::forward && call != LayerCall::backward) return;
    CallSteps divided;
    const double product = facts(b).forward_flops / 2;
    call == LayerCall::forward ? describe_forward(divided, product) : describe_backward(divided, product);
    const auto most = std::max(b.tokens(), 2 * s_.width);
    const auto scratch_bytes = scratch_of_g(b.tokens()) + (s_.float8 ? 2 * codes_bytes(most, most) : 0);
    for (auto& step : divided.steps()) step.phase.scratch_bytes = scratch_bytes;
    if (s_.phases)
      steps = std::move(divided);
    else
      steps.compute([divided](LayerContext& c, const LayerTensors& t) { divided.run(c, t); }, scratch_bytes);
  }

 private:
  void describe_forward(CallSteps& steps, double product) const {
    steps.compute({.weights = {{0}}, .x = true, .saved = Access::overwrite, .flops = product},
                  [this](LayerContext& c, const LayerTensors& t) {
                    if (skips_from()) c.math.add(c.stream, h(t), t.x, c.skip);
                    multiply(c, t.saved[0], h(t), Transpose::no, t.weights[0], Transpose::yes);
                  });
    steps.compute({.weights = {{1}, {2}}, .x = true, .y = Access::overwrite, .saved = Access::read, .flops = product},
                  [this](LayerContext& c, const LayerTensors& t) {
                    auto g = scratch(c);
                    c.math.activation(c.stream, Activation::gelu_tanh, g, t.saved[0]);
                    multiply(c, t.y, g, Transpose::no, t.weights[1], Transpose::yes, t.weights[2]);
                    c.math.add(c.stream, t.y, t.y, h(t));
                  });
  }
  void describe_backward(CallSteps& steps, double product) const {
    steps.compute({.half = Half::input,
                   .weights = {{1}},
                   .dy = true,
                   .saved = Access::read,
                   .carried = Access::overwrite,
                   .flops = product},
                  [this](LayerContext& c, const LayerTensors& t) {
                    auto dg = scratch(c);
                    multiply(c, dg, t.dy, Transpose::no, t.weights[1], Transpose::no, {}, Accumulate::no, DType::e5m2);
                    c.math.activation_grad(c.stream, Activation::gelu_tanh, t.carried[0], dg, t.saved[0]);
                    c.math.activation(c.stream, Activation::gelu_tanh, t.carried[1], t.saved[0]);
                  });
    steps.compute(
        {.half = Half::input, .weights = {{0}}, .dy = true, .dx = Access::overwrite, .carried = Access::read, .flops = product},
        [this](LayerContext& c, const LayerTensors& t) {
          multiply(c, t.dx, t.carried[0], Transpose::no, t.weights[0], Transpose::no, {}, Accumulate::no, DType::e5m2);
          c.math.add(c.stream, t.dx, t.dx, t.dy);
          if (skips_from()) c.math.convert(c.stream, t.dskip, t.dx);
        });
    steps.compute({.half = Half::weight,
                   .gradients = {{0}},
                   .x = !skips_from(),
                   .saved = Access::read,
                   .carried = Access::read,
                   .flops = product},
                  [this](LayerContext& c, const LayerTensors& t) {
                    multiply(c, t.gradients[0], t.carried[0], Transpose::yes, h(t), Transpose::no, {}, t.accumulate,
                             DType::e5m2);
                  });
    steps.compute({.half = Half::weight, .gradients = {{1}, {2}}, .dy = true, .carried = Access::read, .flops = product},
                  [this](LayerContext& c, const LayerTensors& t) {
                    multiply(c, t.gradients[1], t.dy, Transpose::yes, t.carried[1], Transpose::no, {}, t.accumulate,
                             DType::e5m2);
                    c.math.bias_grad(c.stream, t.gradients[2], t.dy, t.accumulate);
                  });
  }
  // c (+)= op(a) · op(b) + bias. In 8 bits, `a` has the format `of_a`; the codes lie behind g in scratch.
  void multiply(LayerContext& c, TensorView to, TensorView a, Transpose ta, TensorView b, Transpose tb, TensorView bias = {},
                Accumulate accumulate = Accumulate::no, DType of_a = DType::e4m3) const {
    if (!s_.float8) return c.math.matmul(c.stream, to, a, ta, b, tb, bias, accumulate);
    auto* at = c.scratch.data + scratch_of_g(c.shape.tokens());
    const auto round = [&](DType of, const TensorView& x, bool turns) {
      const auto rows = turns ? columns_of(x) : rows_of(x), columns = turns ? rows_of(x) : columns_of(x);
      const TensorView scale{at, DType::fp32, {1}}, codes{at + kScaleBytes, of, {rows, math::float8_columns(columns)}};
      at += codes_bytes(rows, columns);
      c.math.quantise(c.stream, turns ? TensorView{} : codes, turns ? codes : TensorView{}, scale, x);
      return std::pair{codes, scale};
    };
    const auto [left, left_scale] = round(of_a, a, ta == Transpose::yes);
    const auto [right, right_scale] = round(DType::e4m3, b, tb == Transpose::no);
    c.math.matmul_float8(c.stream, to, left, right, left_scale, right_scale, bias, accumulate);
  }
  static constexpr std::uint64_t kScaleBytes = 64;
  static std::uint64_t codes_bytes(std::int64_t rows, std::int64_t columns) {
    return kScaleBytes + static_cast<std::uint64_t>(rows * math::float8_columns(columns));
  }
  std::uint64_t scratch_of_g(std::int64_t tokens) const {
    return (static_cast<std::uint64_t>(tokens * 2 * s_.width) * size_of(s_.dtype) + 63) / 64 * 64;
  }
  TensorView h(const LayerTensors& t) const { return skips_from() ? t.saved[1] : t.x; }
  TensorView scratch(LayerContext& c) const { return {c.scratch.data, s_.dtype, {c.shape.tokens(), 2 * s_.width}}; }
  Sizes s_;
  std::int64_t i_;
};

class Head : public Layer {
 public:
  explicit Head(Sizes s) : s_(s) {}
  std::string name() const override { return "head"; }
  std::vector<ParamSpec> params() const override {
    return {{"scale", {s_.width}, {InitKind::ones, 0}, false, false},
            {s_.tied ? "table" : "out", {s_.vocab, s_.width}, {InitKind::normal, 0.1}, true, s_.tied}};
  }
  LayerFacts facts(BatchShape b) const override {
    return {.forward_flops = 2.0 * static_cast<double>(b.tokens() * s_.width * s_.vocab)};
  }
  void describe(CallSteps& steps, LayerCall call, BatchShape b) const override {
    if (call != LayerCall::forward && call != LayerCall::backward) return;
    const auto n = static_cast<std::uint64_t>(b.tokens());
    steps.compute([this, call](LayerContext& c, const LayerTensors& t) { run(c, t, call == LayerCall::backward); },
                  n * static_cast<std::uint64_t>(s_.vocab + 2 * s_.width) * size_of(s_.dtype) + 2 * n * 8 + 256);
  }

 private:
  void run(LayerContext& c, const LayerTensors& t, bool gradients) const {
    const auto n = c.shape.tokens();
    auto* at = c.scratch.data;
    const auto take = [&](DType dtype, Shape shape) {
      TensorView v{at, dtype, shape};
      at += (v.bytes() + 63) / 64 * 64;
      return v;
    };
    const auto statistics = s_.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
    auto row_loss = take(DType::fp64, {n});
    auto rstd = take(statistics, {n});
    auto h = take(s_.dtype, {n, s_.width});
    auto dh = take(s_.dtype, {n, s_.width});
    auto logits = take(s_.dtype, {n, s_.vocab});
    c.math.norm(c.stream, h, {}, rstd, t.x, t.weights[0], {}, 1e-5);
    c.math.matmul(c.stream, logits, h, Transpose::no, t.weights[1], Transpose::yes);
    c.math.cross_entropy(c.stream, row_loss, gradients ? logits : TensorView{}, logits, c.targets, c.loss_scale);
    c.math.sum(c.stream, c.loss, row_loss, Accumulate::no);
    if (!gradients) return;
    c.math.matmul(c.stream, dh, logits, Transpose::no, t.weights[1], Transpose::no);
    const auto gradient = [&](std::size_t i) {
      return i < t.gradients.size() ? t.gradients[i] : TensorView{};
    };  // empty: frozen
    if (!gradient(1).empty()) c.math.matmul(c.stream, gradient(1), logits, Transpose::yes, h, Transpose::no, {}, t.accumulate);
    c.math.norm_input_grad(c.stream, t.dx, dh, t.x, t.weights[0], {}, rstd, Accumulate::no);
    if (!gradient(0).empty()) c.math.norm_weight_grad(c.stream, gradient(0), {}, dh, t.x, {}, rstd, t.accumulate);
  }
  Sizes s_;
};

inline Model make_model(Sizes s) {
  Model m{.family = "toy", .dtype = s.dtype, .width = s.width, .layers = {}};
  m.layers.push_back(std::make_unique<Embed>(s));
  for (std::int64_t i = 0; i < s.blocks; ++i) m.layers.push_back(std::make_unique<Block>(s, i));
  m.layers.push_back(std::make_unique<Head>(s));
  return m;
}

inline void initialise(const ParamSpec& param, std::uint64_t first, TensorView range) {
  const auto stream = math::stream_of(param.name.c_str());
  const auto value = [&](std::uint64_t i) {
    return param.init.kind == InitKind::zeros  ? 0.0
           : param.init.kind == InitKind::ones ? 1.0
                                               : param.init.std * math::random_normal(7, stream, i);
  };
  for (std::int64_t i = 0; i < range.elements(); ++i) {
    const double v = value(first + static_cast<std::uint64_t>(i));
    if (range.dtype == DType::fp64)
      range.as<double>()[i] = v;
    else if (range.dtype == DType::bf16)
      range.as<bf16>()[i] = bf16(static_cast<float>(v));
    else
      range.as<float>()[i] = static_cast<float>(v);
  }
}

}  // namespace terrace::toy
