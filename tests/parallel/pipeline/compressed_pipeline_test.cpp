// The sender rounds what travels in fewer bits, each micro-batch by itself. So pipelines change no bit here either, whichever
// rank computes what, and when.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/pipeline/pipeline_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

constexpr const char* kOrders[] = {"layerwise", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"};

class CompressedPipeline : public test::PipelineRun {
 protected:
  static toy::RunOptions options(std::uint32_t micro_batches) {
    toy::RunOptions o;
    o.steps = 2;
    o.sizes.width = 72;  // tensors end within blocks
    o.sizes.blocks = 4;
    o.shape = {{1, 8}, micro_batches};
    o.data.canonical = true;
    return o;
  }
  static std::string name(const toy::RunOptions& o) {
    constexpr const char* kNames[] = {"whole", "bf16", "int8"};
    return fmt::format("gradients {}, weights {}, {}{}", kNames[static_cast<int>(o.data.gradients)],
                       kNames[static_cast<int>(o.data.weights)], name_of(o.sizes.dtype), o.sizes.tied ? ", tied" : "");
  }
  // The same micro-batches on two data ranks that shard the weights, without a pipeline.
  toy::RunResult without_pipeline(toy::RunOptions o) {
    o.shape.micro_batches /= 2;
    o.data.ranks = 2;
    o.data.zero = 3;
    return run(o, "two data ranks");
  }
};

// With rounded weights, the reference is a run on two data ranks. (one_rank_bits_test.cpp tests rounded gradients alone.)
TEST_F(CompressedPipeline, EverySynchronousOrderGivesTheBitsWithoutPipeline) {
  int at = 0;
  for (const auto gradients : {Travel::whole, Travel::bf16, Travel::int8}) {
    auto base = options(16);
    base.sizes.tied = gradients != Travel::bf16;
    base.sizes.dtype = gradients == Travel::int8 ? DType::bf16 : DType::fp32;
    const auto exact = run(base, "exact").hash;
    base.data.gradients = gradients;
    base.data.weights = Travel::int8;
    const auto rounded = without_pipeline(base);
    EXPECT_NE(rounded.hash, exact) << name(base) << ": nothing was rounded";
    for (const std::string order : kOrders) {
      auto o = base;
      const int tiers = at % 3;
      o.data.ranks = at % 2 == 0 ? 2 : 4;
      o.data.zero = 3;
      o.data.shard_group = at % 4 == 1 ? 2 : 0;
      o.shape.micro_batches = 16 / o.data.ranks;
      o.pipeline = test::pipeline_of(order, 2, o.shape.micro_batches, 2, o.sizes.blocks);
      if (tiers > 0) test::squeeze_stages(o, tiers == 2);
      expect_same_within(o, rounded, fmt::format("{}: {} on 2 × {} ranks, tiers {}", name(base), order, o.data.ranks, tiers));
      ++at;
    }
  }
}

// The ranks of both directions gather a stage's weights from their own data ranks and get the same rounded weights.
TEST_F(CompressedPipeline, TwoDirectionsGatherTheSameRoundedWeights) {
  struct Case {
    std::uint32_t ranks, data, shard_group, micro_batches;
    DType dtype;
    bool tied;
    int tiers;
  };
  for (const auto& c : {Case{2, 2, 0, 6, DType::fp32, true, 0},
                        {4, 2, 0, 4, DType::bf16, false, 2},
                        {4, 3, 0, 4, DType::fp32, true, 1},
                        {2, 4, 2, 4, DType::bf16, true, 2}}) {
    auto base = options(c.micro_batches * c.data);
    base.sizes.dtype = c.dtype;
    base.sizes.tied = c.tied;
    const auto exact = run(base, "exact");
    base.data.weights = Travel::int8;
    const auto rounded = without_pipeline(base);
    EXPECT_NE(rounded.hash, exact.hash) << "nothing was rounded";
    auto o = base;
    o.shape.micro_batches = c.micro_batches;
    o.data.ranks = c.data;
    o.data.zero = 3;
    o.data.shard_group = c.shard_group;
    o.pipeline = test::pipeline_of("chimera", c.ranks, c.micro_batches, 1, o.sizes.blocks);
    if (c.tiers > 0) test::squeeze_stages(o, c.tiers == 2);
    expect_same_within(o, rounded, fmt::format("chimera on {} × {} ranks, tiers {}", c.ranks, c.data, c.tiers));
  }
}

TEST_F(CompressedPipeline, TwoDirectionsAddGradientsUpAsTheyAre) {
  for (const auto travel : {Travel::bf16, Travel::int8})
    for (const std::uint32_t zero : {0U, 3U}) {
      auto o = options(4);
      o.data = {.ranks = 2, .zero = zero, .canonical = true, .gradients = travel};
      o.pipeline = test::pipeline_of("chimera", 2, 4, 1, o.sizes.blocks);
      EXPECT_THAT(test::refusal_of([&] { static_cast<void>(plan(toy::make_model(o.sizes), toy::request_of(o), o.profile)); }),
                  testing::HasSubstr("leave out `compress-gradients`"));
    }
}

}  // namespace
}  // namespace terrace
