// Runs layers without an engine: buffers of exactly the sizes that a layer asks for, between canaries, filled with NaN.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/parallel/layers/parts/scratch.h>
#include <terrace/tests/support/mirrored_bytes.h>
#include <terrace/tests/support/program_device.h>

#include <terrace/tests/examples/lm/reference_model.h>

namespace terrace::test {

class Buffer {
 public:
  Buffer() = default;
  // Allocates in the memory of the mirror, if there is one; `host`: memory that layers read on the host.
  explicit Buffer(std::uint64_t bytes, MemoryResource* host = nullptr) : bytes_(bytes) {
    if (test_mirror) {
      slab_ = std::make_shared<Slab>((host ? *host : test_mirror->memory).allocate(bytes + 2 * kPageBytes));
    } else {
      memory_ = TestBytes(bytes + 2 * kPageBytes);
    }
    for (auto* const zone : {whole(), data() + bytes}) put_bytes(zone, canary().data(), kPageBytes);
    poison();
  }
  [[nodiscard]] std::byte* data() const { return whole() + kPageBytes; }
  // Fills the buffer with bytes that are a NaN in every floating-point dtype.
  void poison() { put_bytes(data(), std::vector(bytes_, std::byte{0xff}).data(), bytes_); }
  [[nodiscard]] bool canaries_live() const {
    return bytes_at(whole(), kPageBytes) == canary() && bytes_at(data() + bytes_, kPageBytes) == canary();
  }
  [[nodiscard]] std::string bits() const {
    const auto here = bytes_at(data(), bytes_);
    return {reinterpret_cast<const char*>(here.data()), bytes_};
  }

 private:
  static const std::vector<std::byte>& canary() {
    static const std::vector<std::byte> page(kPageBytes, std::byte{0xa5});
    return page;
  }
  [[nodiscard]] std::byte* whole() const { return slab_ ? slab_->data() : memory_.data(); }

  std::uint64_t bytes_ = 0;
  TestBytes memory_;
  std::shared_ptr<Slab> slab_;  // used instead if there is a mirror
};

inline Values get(const TensorView& there) {
  auto bytes = bytes_at(there.data, there.bytes());
  const TensorView view{bytes.data(), there.dtype, there.shape};
  Values v(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < v.size(); ++i) {
    switch (view.dtype) {
      case DType::fp32: v[i] = view.as<float>()[i]; break;
      case DType::bf16: v[i] = static_cast<float>(view.as<bf16>()[i]); break;
      case DType::fp16: v[i] = static_cast<float>(view.as<fp16>()[i]); break;
      case DType::fp64: v[i] = view.as<double>()[i]; break;
      case DType::i32: v[i] = view.as<std::int32_t>()[i]; break;
      case DType::e4m3:
      case DType::e5m2: ADD_FAILURE() << "layers have no tensors of 8 bits"; break;
    }
  }
  return v;
}
inline void set(const TensorView& there, const Values& v) {
  ASSERT_EQ(static_cast<std::size_t>(there.elements()), v.size());
  std::vector<std::byte> bytes(there.bytes());
  const TensorView view{bytes.data(), there.dtype, there.shape};
  for (std::size_t i = 0; i < v.size(); ++i) {
    switch (view.dtype) {
      case DType::fp32: view.as<float>()[i] = static_cast<float>(v[i]); break;
      case DType::bf16: view.as<bf16>()[i] = bf16(static_cast<float>(v[i])); break;
      case DType::fp16: view.as<fp16>()[i] = fp16(static_cast<float>(v[i])); break;
      case DType::fp64: view.as<double>()[i] = v[i]; break;
      case DType::i32: view.as<std::int32_t>()[i] = static_cast<std::int32_t>(v[i]); break;
      case DType::e4m3:
      case DType::e5m2: ADD_FAILURE() << "layers have no tensors of 8 bits"; break;
    }
  }
  put_bytes(there.data, bytes.data(), bytes.size());
}

// Within `tolerance` of the largest value, or of 1.
inline void expect_near(const Values& expected, const Values& found, double tolerance, const std::string& what) {
  ASSERT_EQ(expected.size(), found.size()) << what;
  double most = 1;
  for (const double value : expected) most = std::max(most, std::abs(value));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(expected[i], found[i], tolerance * most) << what << ", element " << i;
}

struct Machine {
  Machine() : pool(2), device(make_test_device(pool)), stream(device->make_stream("test")) {}
  ThreadPool pool;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

// Tensors in one buffer, each at a multiple of `align_elements` elements of its own dtype.
struct Packed {
  Packed() = default;
  Packed(const std::vector<TensorSpec>& specs, std::uint64_t align_elements, MemoryResource* host = nullptr) {
    std::vector<std::uint64_t> offsets;
    std::uint64_t bytes = 0;
    for (const auto& s : specs) {
      const std::uint64_t align_bytes = align_elements * size_of(s.dtype);
      offsets.push_back(bytes = round_up(bytes, align_bytes));
      bytes += s.bytes();
    }
    buffer = Buffer(bytes, host);
    for (std::size_t i = 0; i < specs.size(); ++i)
      views.push_back({buffer.data() + offsets[i], specs[i].dtype, specs[i].shape});
  }
  Buffer buffer;
  std::vector<TensorView> views;
};

// One layer with everything that its calls need.
class LayerRun {
 public:
  LayerRun(Machine& machine, const Layer& of, DType dtype, std::int64_t width, BatchShape batch, bool first, bool last)
      : layer(of), shape(batch), params(of.params()), facts(of.facts(batch)), machine_(machine) {
    std::vector<TensorSpec> weight_specs, gradient_specs;
    for (const auto& p : params) {
      weight_specs.push_back({p.name, dtype, p.shape});
      gradient_specs.push_back({p.name, accumulator_of(dtype), p.shape});
    }
    weights = Packed(weight_specs, 64);
    gradients = Packed(gradient_specs, 64);
    saved = Packed(facts.saved, 64);
    carried = Packed(facts.carried, 64);
    for (const auto call : {LayerCall::forward, LayerCall::backward, LayerCall::decode}) {
      const auto steps = layer.described(call, shape);
      scratch_bytes = std::max(scratch_bytes, steps.scratch_bytes());
      if (call != LayerCall::decode) work[static_cast<std::size_t>(call)] = Packed(steps.work(), 64);
    }
    report = Packed({{"report", DType::fp64, {facts.report_size}}}, 64, machine.device->host_memory().get());
    const TensorSpec row{"x", dtype, {shape.tokens(), width}}, ids{"tokens", DType::i32, {shape.tokens()}};
    const std::vector<TensorSpec> none;
    x = Packed(first ? none : std::vector{row}, 64), dx = Packed(first ? none : std::vector{row}, 64);
    y = Packed(last ? none : std::vector{row}, 64), dy = Packed(last ? none : std::vector{row}, 64);
    const auto skips = facts.skips_from ? std::vector{row} : none;
    skip = Packed(skips, 64), dskip = Packed(skips, 64);
    io = Packed({ids, ids, {"loss", DType::fp64, {1}}}, 64);
    scratch = Buffer(scratch_bytes);
  }

  // The only tensor of `p`, or none.
  static TensorView only(const Packed& p) { return p.views.empty() ? TensorView{} : p.views[0]; }
  [[nodiscard]] TensorView tokens() const { return io.views[0]; }
  [[nodiscard]] TensorView targets() const { return io.views[1]; }
  [[nodiscard]] double loss() const { return get(io.views[2])[0]; }

  LayerContext context() {
    scratch.poison();
    const auto words = static_cast<std::int64_t>(scratch_bytes / 4);
    return {.stream = *machine_.stream,
            .math = machine_.device->math(),
            .shape = shape,
            .tokens = tokens(),
            .targets = targets(),
            .loss_scale = loss_scale,
            .loss = io.views[2],
            .scratch = {scratch.data(), DType::i32, {words}},
            .skip = only(skip),
            .evaluate = false,
            .report = facts.report_size == 0 ? TensorView{} : report.views[0],
            .documents = {document_begins, shape.seq},
            .token_scale = token_scale};
  }
  void forward() {
    saved.buffer.poison();
    auto ctx = context();
    layer.forward(ctx, {.weights = weights.views,
                        .gradients = {},
                        .x = only(x),
                        .y = only(y),
                        .saved = saved.views,
                        .dy = {},
                        .dx = {},
                        .carried = {},
                        .work = work_of(LayerCall::forward)});
    finish();
  }
  void backward(Half half, Accumulate accumulate = Accumulate::no) {
    auto ctx = context();
    const bool weight = has(half, Half::weight), input = has(half, Half::input);
    if (!input) ctx.skip = {};
    const std::string before = saved.buffer.bits();
    layer.backward(ctx,
                   {.weights = weights.views,
                    .gradients = weight ? std::span<const TensorView>(gradients.views) : std::span<const TensorView>{},
                    .accumulate = accumulate,
                    .x = facts.keeps_input ? only(x) : TensorView{},
                    .y = {},
                    .saved = saved.views,
                    .dy = only(dy),
                    .dx = input ? only(dx) : TensorView{},
                    .dskip = input ? only(dskip) : TensorView{},
                    .carried = carried.views,
                    .work = work_of(LayerCall::backward)},
                   half);
    finish();
    EXPECT_TRUE(before == saved.buffer.bits()) << layer.name() << " wrote to saved tensors in its backward";
  }
  std::span<const TensorView> work_of(LayerCall call) {
    auto& of_call = work[static_cast<std::size_t>(call)];
    of_call.buffer.poison();
    return of_call.views;
  }
  void finish() {
    machine_.stream->synchronize();
    for (const Packed* p :
         {&weights, &gradients, &saved, &carried, &x, &y, &dx, &dy, &skip, &dskip, &io, &report, &work[0], &work[1]}) {
      EXPECT_TRUE(p->buffer.canaries_live()) << layer.name() << " wrote outside a tensor";
    }
    EXPECT_TRUE(scratch.canaries_live()) << layer.name() << " wrote outside its scratch";
  }

  const Layer& layer;
  const BatchShape shape;
  const std::vector<ParamSpec> params;
  const LayerFacts facts;
  Packed weights, gradients, saved, carried, x, y, dx, dy, skip, dskip, io, report;
  std::array<Packed, 2> work;  // [call]: forward, backward
  Buffer scratch;
  std::uint64_t scratch_bytes = 0;
  double loss_scale = 1, token_scale = 1;
  std::vector<std::int32_t> document_begins;  // empty: each sequence is one document

 private:
  Machine& machine_;
};

// A whole model, layer after layer.
class Chain {
 public:
  Chain(Machine& machine, const lm::ModelConfig& config, BatchShape shape) : Chain(machine, lm::make_model(config), shape) {}
  Chain(Machine& machine, Model made, BatchShape shape) : model(std::move(made)), machine_(machine) {
    for (std::size_t l = 0; l < model.layers.size(); ++l) {
      runs.push_back(std::make_unique<LayerRun>(machine, *model.layers[l], model.dtype, model.width, shape, l == 0,
                                                l + 1 == model.layers.size()));
    }
  }
  void set_weights(const Weights& weights) {
    for (auto& run : runs) {
      for (std::size_t p = 0; p < run->params.size(); ++p) set(run->weights.views[p], weights.at(run->params[p].name));
    }
  }
  void set_ids(const std::vector<int>& tokens, const std::vector<int>& targets) {
    for (auto& run : runs) {
      set(run->tokens(), Values(tokens.begin(), tokens.end()));
      set(run->targets(), Values(targets.begin(), targets.end()));
    }
  }
  // Fills every layer's x, its skip input, and its saved tensors.
  void forward() {
    for (std::size_t l = 0; l + 1 < runs.size(); ++l) {
      runs[l]->forward();
      hand_on(l);
    }
  }
  // Copies a layer's result to the layers that read it.
  void hand_on(std::size_t l) {
    copy(LayerRun::only(runs[l + 1]->x), LayerRun::only(runs[l]->y));
    for (auto& run : runs)
      if (run->facts.skips_from == l) copy(LayerRun::only(run->skip), LayerRun::only(runs[l]->y));
  }
  double loss() {
    forward();
    runs.back()->forward();
    return runs.back()->loss();
  }
  // The micro-batch's loss. Fills gradients by name; that of a tied table is the sum over its uses.
  double backward(double loss_scale) {
    forward();
    for (std::size_t l = runs.size(); l-- > 0;) {
      runs[l]->loss_scale = loss_scale;
      runs[l]->backward(Half::both);
      if (l == 0) continue;
      const auto dy = LayerRun::only(runs[l - 1]->dy);
      copy(dy, LayerRun::only(runs[l]->dx));
      for (const auto& run : runs)
        if (run->facts.skips_from == l - 1) machine_.device->math().add(*machine_.stream, dy, dy, LayerRun::only(run->dskip));
      machine_.stream->synchronize();
    }
    return runs.back()->loss();
  }
  [[nodiscard]] Weights gradients() const {
    Weights sums;
    for (const auto& run : runs) {
      for (std::size_t p = 0; p < run->params.size(); ++p) {
        const Values g = get(run->gradients.views[p]);
        Values& sum = sums[run->params[p].name];
        sum.resize(g.size());
        for (std::size_t i = 0; i < g.size(); ++i) sum[i] += g[i];
      }
    }
    return sums;
  }
  static void copy(const TensorView& to, const TensorView& from) {
    put_bytes(to.data, bytes_at(from.data, from.bytes()).data(), from.bytes());
  }

  Model model;
  std::vector<std::unique_ptr<LayerRun>> runs;

 private:
  Machine& machine_;
};

}  // namespace terrace::test
