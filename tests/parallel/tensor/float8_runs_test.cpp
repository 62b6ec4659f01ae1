// Products of 8 bits in the engine: a scale is that of a whole tensor of a micro-batch on a rank, so budgets, orders, tiers,
// resuming, pipelines and canonical data ranks change no bit, and every mesh trains nearly what one rank trains.
#include <gmock/gmock.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/models/adapters.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

class Float8Runs : public TensorRuns {
 protected:
  static TensorRun of(const char* family) {
    return {.config = {.family = lm::family_named(family),
                       .layers = 2,
                       .hidden = 64,
                       .heads = 4,
                       .kv_heads = family == std::string_view("llama") ? 2 : 4,
                       .ffn = 96,
                       .seq_len = 16,
                       .vocab = 263,
                       .dtype = DType::bf16,
                       .products = layers::Products::fp8}};
  }
};

TEST_F(Float8Runs, BudgetsOrdersAndTiersChangeNoBit) {
  std::vector<TensorRun> runs{of("llama"), of("gpt2")};
  const auto also = [&](auto change) { change(runs.emplace_back(of("llama"))); };
  also([](auto& o) { o.config.experts = {.count = 4, .chosen = 2, .shared = 1}; });
  also([](auto& o) { o.config.adapters = lm::adapters_of(o.config.family, false, 2, 5, "all"); });
  also([](auto& o) { o.config.mlp_row_tiles = 3; });
  also([](auto& o) { o.config.mlp_tiles = 2, o.config.attention_tiles = 2; });
  also([](auto& o) { o.recipe = "all-bf16"; });
  also([](auto& o) { o.tensor_ranks = 2; });
  also([](auto& o) { o.tensor_ranks = 2, o.sequence = true, o.pieces = 2; });
  also([](auto& o) { o.context = 2; });
  also([](auto& o) { o.config.experts = {.count = 4, .chosen = 2}, o.experts = 2; });
  for (const auto& o : runs) {
    SCOPED_TRACE(name_of(o));
    expect_no_bit_changes_in_little_memory(o);
    if (HasFailure()) return;
  }
}

TEST_F(Float8Runs, AResumedRunHasTheSameBits) {
  auto o = of("llama");
  const auto whole = run(o);
  o.store = new_store();
  o.commit_after = 1;
  const auto first = run_all(o).front();
  o.resume = true;
  o.commit_after = 0;
  o.squeezed = o.disk_tier = true;
  auto rest = run_all(o).front();
  rest.losses.insert(rest.losses.begin(), first.losses.begin(), first.losses.end());
  rest.norms.insert(rest.norms.begin(), first.norms.begin(), first.norms.end());
  expect_same(whole, rest, "resumed");
}

TEST_F(Float8Runs, DataAndPipelineRanksHaveTheBitsOfOne) {
  auto o = of("llama");
  o.micro_batches = 4;
  const auto one = run(o);
  for (const std::uint32_t zero : {0, 2, 3}) {
    auto ranks = o;
    ranks.data = {.ranks = 2, .zero = zero, .canonical = true};
    ranks.micro_batches = 2;
    expect_same(one, run(ranks), name_of(ranks));
  }
  for (const auto* const schedule : {"1f1b", "zb-h1"}) {
    auto ranks = o;
    ranks.schedule = schedule;
    expect_same(one, run(ranks), schedule);
  }
}

// Other sums and other scales, but the same training.
TEST_F(Float8Runs, EveryMeshTrainsNearlyWhatOneRankTrains) {
  const auto near = [&](const TensorResult& one, const TensorResult& other, double tolerance, const std::string& what) {
    ASSERT_EQ(one.losses.size(), other.losses.size()) << what << other.refusal;
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(one.losses[s], other.losses[s], tolerance * one.losses[s]) << what;
      EXPECT_NEAR(one.norms[s], other.norms[s], 10 * tolerance * one.norms[s]) << what;
    }
    EXPECT_NE(first_difference(one.weights, other.weights), "") << what << ": it does not reach the bits";
  };
  const auto o = of("llama");
  const auto one = run(o);
  auto bf16 = o;
  bf16.config.products = layers::Products::dtype;
  near(one, run(bf16), 1e-2, "bf16");
  const auto also = [&](auto change) {
    auto other = o;
    change(other);
    near(one, run(other), 1e-2, name_of(other));
  };
  also([](auto& c) { c.tensor_ranks = 2; });
  also([](auto& c) { c.tensor_ranks = 2, c.sequence = true; });
  also([](auto& c) { c.context = 2; });
  also([](auto& c) { c.config.mlp_row_tiles = 3; });
}

// The plan counts the scratch of the operands: in the largest phase, the codes and scales of a product.
TEST_F(Float8Runs, APlanCountsTheOperands) {
  auto o = of("llama");
  o.store = new_store();
  const auto with = plan_of(o).smallest[Tier::device];
  o.config.products = layers::Products::dtype;
  const auto without = plan_of(o).smallest[Tier::device];
  const std::uint64_t least = 2 * 64 * 128;  // the codes of the smallest operand, a matrix of 64 rows of at least 128
  EXPECT_GE(with, without + least);
}

TEST_F(Float8Runs, WhatCannotBePromisedIsRefused) {
  const auto refused = [&](auto change, const char* why) {
    auto o = of("llama");
    change(o);
    EXPECT_THAT(refusal_of([&] { static_cast<void>(model_of(config_of(o, 0))); }), testing::HasSubstr(why));
  };
  refused([](auto& o) { o.tensor_ranks = 4, o.grid = {.side = 2}; }, "a grid");
  refused([](auto& o) { o.config.dtype = DType::fp32; }, "results in bf16, but the dtype is fp32");
  refused([](auto& o) { o.config.ffn = 72; }, "a tile of a rank's MLP has 72");
  refused([](auto& o) { o.config.hidden = 72; }, "multiples of 16");
  refused([](auto& o) { o.config.mlp_tiles = 4; }, "a tile of a rank's MLP has 24");
}

}  // namespace
}  // namespace terrace::test
