#include <terrace/bench/ranks/paced_model.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

namespace terrace::bench {
namespace {

using pipeline::Work;

constexpr std::int64_t kWidth = 16;

class Paced final : public Layer {
 public:
  Paced(std::string name, std::int64_t parameters, double forward_s, double input_s, double weight_s)
      : name_(std::move(name)), parameters_(parameters), forward_s_(forward_s), input_s_(input_s), weight_s_(weight_s) {}
  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] std::vector<ParamSpec> params() const override { return {{.name = name_ + ".weight", .shape = {parameters_}}}; }
  [[nodiscard]] LayerFacts facts(BatchShape) const override { return {}; }
  void describe(CallSteps& steps, LayerCall call, BatchShape) const override {
    if (call == LayerCall::forward) steps.compute([this](LayerContext& ctx, const LayerTensors& t) { forward(ctx, t); });
    if (call == LayerCall::backward) steps.compute([this](LayerContext& ctx, const LayerTensors& t) { backward(ctx, t); });
  }

 private:
  void forward(LayerContext& ctx, const LayerTensors& t) const {
    clear(ctx.stream, t.y);
    clear(ctx.stream, t.y.data ? TensorView{} : ctx.loss);
    take(ctx.stream, forward_s_);
  }
  void backward(LayerContext& ctx, const LayerTensors& t) const {
    if (has(ctx.half, Half::input)) {
      clear(ctx.stream, t.dx);
      if (!t.dy.data) clear(ctx.stream, ctx.loss);
      take(ctx.stream, input_s_);
    }
    if (has(ctx.half, Half::weight)) {
      if (t.accumulate == Accumulate::no) clear(ctx.stream, t.gradients[0]);
      take(ctx.stream, weight_s_);
    }
  }
  static void clear(Stream& stream, const TensorView& view) {
    if (view.data) stream.submit([view] { std::memset(view.data, 0, view.bytes()); });
  }
  static void take(Stream& stream, double seconds) {
    if (seconds > 0) stream.submit([seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  }
  std::string name_;
  std::int64_t parameters_;
  double forward_s_, input_s_, weight_s_;
};

}  // namespace

Model paced_model(std::uint32_t stages, const pipeline::StageCosts& costs, std::int64_t parameters) {
  Model model{.family = "paced", .dtype = DType::fp32, .width = kWidth, .layers = {}};
  model.layers.push_back(std::make_unique<Paced>("first", 1, 0, 0, 0));
  for (std::uint32_t s = 0; s < stages; ++s)
    model.layers.push_back(std::make_unique<Paced>("stages." + std::to_string(s), parameters, costs.of({Work::forward, s, 0}),
                                                   costs.of({Work::input, s, 0}), costs.of({Work::weight, s, 0})));
  model.layers.push_back(std::make_unique<Paced>("last", 1, 0, 0, 0));
  return model;
}

pipeline::Pipeline paced_pipeline(pipeline::Schedule schedule) {
  pipeline::Pipeline p{.schedule = std::move(schedule), .begins = {0}};
  const auto stages = p.schedule.placement.stages;
  for (std::uint32_t s = 1; s < stages; ++s) p.begins.push_back(s + 1);
  p.begins.push_back(stages + 2);
  return p;
}

double PacedCosts::seconds(const Action& a) const {
  if (communicates(a.op)) return collectives_.each_s;
  if (a.layer == 0 || a.layer > stages_) return 0;
  const auto of = [&](Work work) { return costs_.of({work, a.layer - 1, a.micro_batch}); };
  switch (a.op) {
    case Op::forward: return of(Work::forward);
    case Op::backward: return of(Work::backward);
    case Op::backward_input: return of(Work::input);
    case Op::backward_weight: return of(Work::weight);
    default: return 0;
  }
}

}  // namespace terrace::bench
