// Numbers that travel in fewer bits are rounded by whoever sends them, each micro-batch's by itself: so pipelines change no bit
// of them either, whichever rank computes what, and when.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <map>

#include <terrace/core/error.h>
#include <terrace/tests/support/covering_rows.h>

#include "pipeline_run.h"

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

// Every two settings together, in some row.
TEST_F(CompressedPipeline, EverySynchronousOrderGivesTheBitsWithoutPipeline) {
  struct Data {
    std::uint32_t ranks, zero, shard_group;
  };
  const Data data[] = {{1, 0, 0}, {2, 0, 0}, {2, 1, 0}, {2, 2, 0}, {2, 3, 0}, {4, 3, 2}};
  using enum Travel;
  const Travel kinds[] = {bf16, int8, whole};
  const test::CoveringRows covering({7, 6, 3, 2, 3, 2, 2}, 2);
  std::map<std::string, toy::RunResult> references;
  const auto reference = [&](const toy::RunOptions& o) -> const toy::RunResult& {
    const auto key = name(o);
    if (!references.contains(key)) references[key] = o.data.weights == whole ? run(o, key) : without_pipeline(o);
    return references[key];
  };
  std::size_t rounding = 0;
  for (const auto& row : covering.rows()) {
    const auto at = [&](std::size_t factor) { return static_cast<std::size_t>(row[factor]); };
    constexpr std::uint32_t kMicroBatches = 16;
    auto base = options(kMicroBatches);
    const std::string order = kOrders[at(0)];
    const auto& d = data[at(1)];
    const int tiers = row[4];
    base.sizes.tied = row[5] == 0;
    base.sizes.dtype = row[6] == 0 ? DType::fp32 : DType::bf16;
    const auto exact = reference(base).hash;
    base.data.gradients = kinds[at(2)];
    if (d.zero == 3 && (row[3] == 1 || base.data.gradients == whole)) base.data.weights = int8;
    if (base.data.gradients == whole && base.data.weights == whole) continue;
    ++rounding;
    EXPECT_NE(reference(base).hash, exact) << name(base) << ": nothing was rounded";

    auto o = base;
    o.threads = 1 + row[3];
    o.shape.micro_batches = kMicroBatches / d.ranks;
    o.data.ranks = d.ranks;
    o.data.zero = d.zero;
    o.data.shard_group = d.shard_group;
    o.pipeline = test::pipeline_of(order, 2, o.shape.micro_batches, 2, o.sizes.blocks);
    const auto what = fmt::format("{}: {} on 2 × {} ranks, ZeRO-{}, tiers {}", name(base), order, d.ranks, d.zero, tiers);
    if (tiers > 0) test::squeeze_stages(o, tiers == 2);
    expect_same_within(o, reference(base), what);
  }
  EXPECT_GE(rounding, 30U);
}

// Both directions' ranks gather a stage's weights from their own data ranks: the same rounded ones.
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
      try {
        static_cast<void>(plan(toy::make_model(o.sizes), toy::request_of(o), o.profile));
        ADD_FAILURE() << "not refused";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit(), Exit::usage);
        EXPECT_NE(std::string(e.what()).find("leave out `compress-gradients`"), std::string::npos) << e.what();
      }
    }
}

}  // namespace
}  // namespace terrace
