// A user-defined layer in a chain of the library's layers. docs/guides/embedding.md shows it.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/train/initial_weights.h>
#include <terrace/parallel/train/trainer.h>
#include <terrace/tests/support/folder_test.h>

namespace terrace {
namespace {

// y = x + x · W
class Mix final : public Layer {
 public:
  explicit Mix(std::int64_t width) : width_(width) {}
  std::string name() const override { return "mix"; }
  std::vector<ParamSpec> params() const override { return {{"mix.weight", {width_, width_}, {InitKind::normal, 0.02}}}; }
  LayerFacts facts(BatchShape b) const override {  // it saves nothing besides x
    return {.forward_flops = 2.0 * static_cast<double>(b.tokens() * width_ * width_)};
  }
  void describe(CallSteps& steps, LayerCall call, BatchShape) const override {
    if (call == LayerCall::forward)
      steps.compute([](LayerContext& c, const LayerTensors& t) {
        c.math.convert(c.stream, t.y, t.x);
        c.math.matmul(c.stream, t.y, t.x, Transpose::no, t.weights[0], Transpose::no, {}, Accumulate::yes);
      });
    if (call == LayerCall::backward)
      steps.compute([](LayerContext& c, const LayerTensors& t) {
        if (has(c.half, Half::input)) {
          c.math.convert(c.stream, t.dx, t.dy);
          c.math.matmul(c.stream, t.dx, t.dy, Transpose::no, t.weights[0], Transpose::yes, {}, Accumulate::yes);
        }
        if (has(c.half, Half::weight))
          c.math.matmul(c.stream, t.gradients[0], t.x, Transpose::yes, t.dy, Transpose::no, {}, t.accumulate);
      });
  }

 private:
  std::int64_t width_;
};

class OwnLayer : public test::FolderTest {};

// After the embedding and before the head, with learning rates as for the other layers: the engine sees a single chain.
TEST_F(OwnLayer, TrainsInAChainOfTheLibrarysLayersUnderAnyBudgets) {
  constexpr std::int64_t kSeq = 16, kWidth = 32;
  Model model = layers::make_transformer(
      {.layers = 1, .hidden = kWidth, .heads = 2, .kv_heads = 1, .ffn = 64, .seq_len = kSeq, .vocab = 64});
  model.layers.insert(model.layers.begin() + 1, std::make_unique<Mix>(kWidth));

  ThreadPool pool(2);
  const auto device = make_cpu_device(pool);
  const auto optimizer = make_optimizer("adamw", {});
  const auto read = [](Split, auto sequences, auto tokens, auto targets) {  // a token determines its successor
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = static_cast<std::int32_t>(sequences[i / kSeq] * 5 + i % kSeq);
      tokens[i] = at % 61, targets[i] = (at + 1) % 61;
    }
    return true;
  };

  struct Result {
    std::vector<float> first_mix, last_mix = {};
    std::vector<double> losses = {};
    std::uint64_t disk_bytes = 0;
  };
  const auto train = [&](Budget budget) {
    const PlanRequest request{.shape = {{4, kSeq}, 2}, .budget = budget, .disk_tier = budget.disk != 0, .steps = 30};
    const auto planned = plan(model, request, {});
    EXPECT_TRUE(planned.fits) << planned.refusal.why;
    Engine engine(
        model, planned,
        {.device = device.get(), .store = {.paths = {folder_.string()}, .temporary = true}, .optimizer = optimizer.get()});
    engine.fill(random_weights(1));
    const auto mix = [&] {
      std::vector<float> all;
      engine.visit([&](const ParamSpec& param, std::uint64_t, TensorView range) {
        const auto* const values = range.as<float>();
        if (param.name == "mix.weight") all.insert(all.end(), values, values + range.elements());
      });
      return all;
    };
    Result result{.first_mix = mix()};
    Trainer trainer(engine, {.read = read, .rate = [](auto) { return 0.01; }, .greatest_norm = 1.0});
    while (trainer.done() < request.steps && trainer.read())
      for (const auto& step : trainer.step()) result.losses.push_back(step.result.loss_sum);
    result.last_mix = mix();
    result.disk_bytes = engine.moved().read + engine.moved().write;
    return result;
  };
  const auto wide = train({kUnlimited, kUnlimited, 0});
  ASSERT_EQ(wide.first_mix.size(), static_cast<std::size_t>(kWidth * kWidth));
  EXPECT_NE(wide.first_mix, wide.last_mix);
  EXPECT_LT(wide.losses.back(), 0.5 * wide.losses.front());
  const auto smallest = plan(model, {.shape = {{4, kSeq}, 2}, .disk_tier = true, .steps = 30}, {}).smallest_bytes;
  const auto tight = train({smallest[Tier::device] + 32 * kKiB, 128 * kKiB, 4 * kMiB});
  EXPECT_GT(tight.disk_bytes, 0U);
  EXPECT_EQ(tight.losses, wide.losses);
  EXPECT_EQ(tight.last_mix, wide.last_mix);
}

}  // namespace
}  // namespace terrace
