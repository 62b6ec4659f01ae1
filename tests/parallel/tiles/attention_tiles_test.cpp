// Attention whose products run in tiles trains what untiled attention trains, in a device budget of a quarter of a matrix.
#include <gmock/gmock.h>

#include <terrace/examples/lm/models/adapters.h>
#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

class AttentionTiles : public TensorRuns {};

TEST_F(AttentionTiles, EqualTheWholeLayer) {
  OneIn chosen(2);
  for (const auto& family : {gpt2(), llama()})
    for (const std::uint32_t tiles : {2U, 3U, 4U})
      for (const bool recompute : {false, true}) {
        if (!chosen()) continue;
        TensorRun o{.config = family, .recompute = recompute};
        o.config.hidden = 48;
        o.config.heads = 4;
        o.config.attention_tiles = tiles;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        o.config.window = tiles == 3 ? 5 : 0;
        expect_serial(o, kFp32);
      }
}

TEST_F(AttentionTiles, ComposeWithTensorDataContextAndPipelineParallelism) {
  OneIn chosen(5);
  for (const char* const schedule : {"", "1f1b", "zb-h1"})
    for (const std::uint32_t zero : {0U, 1U, 2U, 3U})
      for (const auto& [tensor, context, ring] :
           {std::tuple{1U, 1U, 1U}, {2U, 1U, 1U}, {1U, 2U, 1U}, {1U, 2U, 2U}, {2U, 2U, 1U}}) {
        if (!chosen()) continue;
        TensorRun o{.config = zero % 2 == 0 ? gpt2() : llama(), .tensor_ranks = tensor, .sequence = zero > 1 && tensor > 1};
        o.config.attention_tiles = 2;
        o.config.mlp_tiles = 2;
        o.config.place.ring = ring;
        o.context = context;
        o.data = {.ranks = tensor * context == 4 ? 1U : 2U, .zero = zero};
        o.schedule = schedule;
        o.disk_tier = o.squeezed = zero == 3;
        expect_serial(o, kFp64);
      }
}

// A layer behind a skip keeps its phases: the first phase adds the skip, and the phase that writes dx also writes the skip's
// gradient.
TEST_F(AttentionTiles, OfBlocksWithSkipsEqualTheWholeLayer) {
  for (const char* const schedule : {"", "1f1b", "zb-h1"})
    for (const bool recompute : {false, true}) {
      TensorRun o{.config = recompute ? gpt2() : llama(), .data = {.ranks = 2, .zero = recompute ? 3U : 1U}};
      o.config.layers = 4;
      o.config.skips = lm::SkipShape::u;
      o.config.attention_tiles = 2;
      o.config.mlp_tiles = 2;
      o.schedule = schedule;
      o.recompute = recompute;
      o.disk_tier = o.squeezed = recompute;
      expect_serial(o, kFp64);
    }
}

// Separate biases of q, k and v; norms of q and k of each head and of all heads together; norms of the blocks' results.
TEST_F(AttentionTiles, WithNormsOrSeveralBiasesEqualTheWholeLayer) {
  for (const char* const family : {"qwen2", "qwen3", "gemma2", "gemma3", "olmo2"})
    for (const std::uint32_t tensor : {1U, 2U})
      for (const char* const schedule : {"", "zb-h1"}) {
        TensorRun o{.config = with_norms(family), .tensor_ranks = tensor};
        o.config.attention_tiles = 2;
        o.schedule = schedule;
        o.recompute = tensor == 2;
        o.disk_tier = o.squeezed = tensor == 1;
        expect_serial(o, kFp64);
      }
}

// The matrices are frozen: a phase reads a tile of them, and only adapters have gradients.
TEST_F(AttentionTiles, WithAdaptersEqualTheWholeLayer) {
  for (const auto& config : {gpt2(), llama(), with_norms("qwen2"), with_norms("gemma3"), with_norms("olmo2")})
    for (const std::uint32_t tensor : {1U, 2U})
      for (const char* const targets : {"all", "k,o"}) {
        TensorRun o{.config = config, .tensor_ranks = tensor};
        const bool fused = config.family.get().tensors.qkv.tensors.size() == 1;  // k has no matrix of its own
        o.config.adapters = lm::adapters_of(config.family, false, 3, 5, fused ? "all" : targets);
        o.config.attention_tiles = 2;
        o.recompute = tensor == 2;
        o.disk_tier = o.squeezed = tensor == 1;
        o.schedule = tensor == 2 ? "" : "zb-h1";
        expect_serial(o, kFp64);
      }
}

// Rows are gathered beside the products of the first tile, and results are added up beside those of the last one. A norm of the
// result needs the sums of all ranks, also without pieces.
TEST_F(AttentionTiles, BesideExchangesInPiecesEqualTheWholeLayer) {
  OneIn chosen(2);
  for (const auto& config : {gpt2(), llama(), with_norms("qwen2"), with_norms("gemma3"), with_norms("olmo2")})
    for (const auto& [ranks, pieces] : {std::pair{2U, 1U}, {2U, 3U}, {4U, 2U}})
      for (const bool adapts : {false, true}) {
        if (!chosen()) continue;
        TensorRun o{.config = config, .tensor_ranks = ranks, .sequence = true, .pieces = pieces};
        if (adapts) o.config.adapters = lm::adapters_of(config.family, false, 3, 5, "all");
        o.config.attention_tiles = 2;
        o.recompute = pieces == 3;
        o.disk_tier = o.squeezed = adapts;
        o.schedule = pieces == 2 ? "zb-h1" : "";
        expect_serial(o, kFp64);
      }
}

// A model of one block whose attention matrices are much larger than all else.
TensorRun with_large_matrices(const char* family) {
  TensorRun o{.config = one_block(family, 3072, 64, 8), .batch = {1, 8}};
  o.config.vocab_tiles = 4;
  o.config.attention_tiles = 32;
  o.steps = 2;
  return o;
}

// The budget is a quarter of one projection matrix: q, k, v or the output; for GPT-2, whose q, k and v are fused, the output.
TEST_F(AttentionTiles, MatricesFourTimesTheDeviceTrainWithTheBitsOfAnUnlimitedRun) {
  OneIn chosen(2);
  for (const auto* const family : {"llama", "gpt2"}) {
    if (!chosen()) continue;
    auto o = with_large_matrices(family);
    const auto wide = run(o);
    const std::uint64_t matrix = 3072 * 3072 * 4;
    EXPECT_LT(wide.smallest[Tier::device], matrix / 4) << family;
    auto whole = o;
    whole.config.attention_tiles = 1;
    const auto at_once = run(whole);
    EXPECT_GT(at_once.smallest[Tier::device], matrix) << family;
    expect_equal(at_once, wide, kFp32, family);
    o.device_bytes = matrix / 4;
    for (const bool disk : {false, true}) {
      o.disk_tier = disk;
      const auto tight = run(o);
      expect_same(wide, tight, fmt::format("{} {}", family, disk ? "disk" : "memory"));
      EXPECT_LE(tight.peak[Tier::device], matrix / 4);
    }
  }
}

TEST_F(AttentionTiles, AStoppedRunGoesOnWithAnotherNumberOfTiles) {
  for (const auto& family : {gpt2(), llama()}) {
    TensorRun o{.config = family};
    o.config.attention_tiles = 4;
    o.steps = 4;
    const auto whole = end_of(run(o), 2);
    const auto stopped = stopped_after(2, o);
    for (const std::uint32_t later : {1U, 2U}) {
      auto again = stopped;
      again.config.attention_tiles = later;
      expect_equal(whole, resume_as(again, stopped), kFp64, fmt::format("{} tiles", later));
    }
  }
}

TEST_F(AttentionTiles, WhatTheyCannotDoIsRefused) {
  const auto why = [](const auto& change) {
    TensorRun o{.config = llama(), .tensor_ranks = 2, .sequence = true};
    o.config.attention_tiles = 2;
    change(o);
    return refusal_of(o);
  };
  EXPECT_EQ("", why([](TensorRun&) {}));
  EXPECT_THAT(why([](TensorRun& o) { o.config.attention_tiles = 5; }), HasSubstr("do not divide"));
  EXPECT_THAT(why([](TensorRun& o) { o.config.attention_tiles = 0; }), HasSubstr("do not divide"));
  EXPECT_EQ("", why([](TensorRun& o) { o.pieces = 2; }));
  EXPECT_EQ("", why([](TensorRun& o) {
              o.config = with_norms("olmo2");
              o.config.attention_tiles = 2;
            }));
  EXPECT_THAT(why([](TensorRun& o) { o.tensor_ranks = 4, o.grid = {.side = 2}; }),
              HasSubstr("do not work with `attention-tiles` 2"));
  for (const auto* const optimizer : {"muon", "lamb", "adafactor"})
    EXPECT_THAT(why([&](TensorRun& o) { o.tensor_ranks = 1, o.sequence = false, o.optimizer = optimizer; }),
                HasSubstr("`attention-tiles`"));
}

}  // namespace
}  // namespace terrace::test
