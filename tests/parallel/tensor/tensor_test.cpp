// Tensor parallelism and sequence parallelism compute what one rank computes: losses, gradient norms, held-out loss and
// weights, for any family, degree, ZeRO stage and tier.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/tests/parallel/tensor/tensor_plans.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

class TensorTest : public TensorRuns {};

TEST_F(TensorTest, EqualsTheSerialModelAtEveryDegree) {
  OneIn chosen(2);
  for (const auto& config : {gpt2(), llama()})
    for (const std::uint32_t ranks : {2U, 4U, 8U})
      for (const bool sequence : {false, true})
        for (const bool tied : {true, false}) {
          if (!chosen()) continue;
          TensorRun o{.config = config, .tensor_ranks = ranks, .sequence = sequence};
          o.config.tied = tied;
          expect_serial(o, kFp64);
        }
}

// Covers norms of q and k, whose heads are divided among ranks; heads with a width of their own; and heads that rotate in part,
// or in some blocks only. With two key-value heads on four ranks, two ranks hold each head.
TEST_F(TensorTest, HeadsWithNormsAndWidthsOfTheirOwnEqualTheSerialModel) {
  for (const auto* const family : {"qwen3", "phi3", "smollm3"})
    for (const std::uint32_t ranks : {2U, 4U}) {
      TensorRun o{.config = llama(), .tensor_ranks = ranks, .sequence = ranks == 4};
      o.config.family = lm::family_named(family);
      o.config.kv_heads = o.config.family.get().tensors.qkv.tensors.size() == 1 ? 4 : 2;
      o.config.head_size = 12;
      if (std::string_view(family) == "phi3") o.config.rope_fraction = 0.5;
      o.config.rotated_blocks = layers::RotatedBlocks({false, true});
      expect_serial(o, kFp64);
      if (std::string_view(family) != "qwen3") continue;
      o.recompute = true;
      o.pieces = ranks == 4 ? 3 : 1;
      if (ranks == 2) o.config.attention_tiles = 2;
      expect_serial(o, kFp64);
      o.config.dtype = DType::fp32;
      expect_serial(o, kFp32);
    }
}

// Covers Gemma: norm weights that are gains less one, a scaled embedding, GELU gates, and caps on the scores of a rank's heads
// and on the logits of a part of the vocabulary.
TEST_F(TensorTest, CapsAndScalesEqualTheSerialModel) {
  for (const auto& [ranks, tiles] : {std::pair{2U, 1U}, {4U, 3U}}) {
    TensorRun o{.config = llama(), .tensor_ranks = ranks, .sequence = ranks == 4};
    o.config.family = lm::family_named("gemma");
    o.config.head_size = 12;
    o.config.vocab_tiles = tiles;
    o.config.query_scalar = 7, o.config.attention_cap = 1.5, o.config.logit_cap = 2;
    expect_serial_in_both(o);
  }
}

// Norms of results act on sums over ranks. Norms over all heads of q and k act on rows of which each rank has a part; with two
// key-value heads on four ranks, two ranks hold each head.
TEST_F(TensorTest, NormsOfSumsEqualTheSerialModel) {
  for (const auto* const family : {"gemma2", "gemma3", "olmo2"})
    for (const std::uint32_t ranks : {2U, 4U})
      for (const bool sequence : {false, true}) {
        TensorRun o{.config = with_norms(family), .tensor_ranks = ranks, .sequence = sequence};
        expect_serial(o, kFp64);
        o.recompute = true;
        o.pieces = sequence && ranks == 2 ? 3 : 1;
        o.config.vocab_tiles = ranks;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        expect_serial(o, kFp32);
      }
  TensorRun odd{.config = with_norms("olmo2"), .tensor_ranks = 3, .batch = {3, 16}};
  odd.config.heads = 6;
  for (const std::int64_t kv_heads : {6, 1}) {
    odd.config.kv_heads = kv_heads;
    odd.sequence = kv_heads == 1;
    expect_serial(odd, kFp64);
  }
}

// Norms over all heads of q and k, while the heads are divided among context ranks and the product of q, k and v is not saved.
TEST_F(TensorTest, NormsOfSumsComposeWithContextRanks) {
  for (const auto* const family : {"gemma3", "olmo2"})
    for (const std::uint32_t ring : {1U, 2U})
      for (const std::uint32_t pieces : {0U, 1U, 2U}) {
        TensorRun o{.config = with_norms(family), .tensor_ranks = 2, .sequence = pieces > 0, .context = 2};
        o.pieces = std::max(1U, pieces);
        o.config.place.ring = ring;
        o.recompute = pieces == 1;
        expect_serial(o, kFp64);
      }
}

TEST_F(TensorTest, DegreesNeedNotBePowersOfTwo) {
  auto config = llama();
  config.heads = config.kv_heads = 6;
  for (const bool sequence : {false, true}) {
    TensorRun o{.config = config, .tensor_ranks = 3, .sequence = sequence, .batch = {3, 16}};
    expect_serial(o, kFp64);
    o.config.kv_heads = 1;
    expect_serial(o, kFp64);
  }
}

TEST_F(TensorTest, AVocabularyIsSplitWhereverItEnds) {
  for (const std::int64_t vocabulary : {17, 127, 256, 259, 31123})
    for (const std::uint32_t ranks : {3U, 8U}) {
      TensorRun o{.config = gpt2(), .tensor_ranks = ranks, .batch = {3, 8}, .micro_batches = 1, .steps = 2};
      o.config.layers = 1;
      o.config.heads = ranks == 3 ? 6 : 8;
      o.config.hidden = 48;
      o.config.vocab = vocabulary;
      expect_serial(o, kFp64);
    }
}

TEST_F(TensorTest, ComposesWithDataAndPipelineParallelismInEveryStageOnDisk) {
  OneIn chosen(3);
  for (const auto& config : {gpt2(), llama(), with_norms("gemma3"), with_norms("olmo2")})
    for (const auto& [data, schedule] : {std::pair{2U, ""}, {1U, "1f1b"}, {2U, "1f1b"}})
      for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
        if (!chosen()) continue;
        TensorRun o{.config = config, .tensor_ranks = 2, .sequence = zero % 2 == 1, .batch = {1, 16}};
        o.data = {.ranks = data, .zero = zero};
        o.schedule = schedule;
        o.squeezed = o.disk_tier = true;
        expect_serial(o, kFp64);
      }
}

TEST_F(TensorTest, EverySynchronousOrderOfAPipelineComposes) {
  for (const auto* const schedule : {"gpipe", "zb-h1", "layerwise"})
    for (const auto& config : {llama(), with_norms("olmo2")}) {
      TensorRun o{.config = config, .tensor_ranks = 2, .sequence = true, .micro_batches = 4, .schedule = schedule};
      if (std::string_view(schedule) == "layerwise") o.micro_batches = 1;
      expect_serial(o, kFp64);
      o.sequence = false;
      expect_serial(o, kFp64);
    }
}

// Settings that only move bytes change no bit on the same mesh.
TEST_F(TensorTest, BudgetsOrdersAndStagesChangeNoBit) {
  std::optional<TensorResult> without_sequence;
  for (const bool sequence : {false, true}) {
    TensorRun plain{.config = llama(), .tensor_ranks = 4, .sequence = sequence, .micro_batches = 3};
    plain.config.dtype = DType::fp32;
    const auto expected = run(plain);
    expect_equal(serial(plain), expected, kFp32, "fp32");
    const auto expect_bits = [&](const TensorRun& o, const char* what) { expect_same(expected, run(o), what); };
    if (!without_sequence) without_sequence = expected;
    EXPECT_EQ("", first_difference(without_sequence->weights, expected.weights));
    EXPECT_EQ(without_sequence->losses, expected.losses);
    expect_bits(plain, "again");
    auto o = plain;
    o.squeezed = true;
    expect_bits(o, "squeezed");
    o.disk_tier = true;
    expect_bits(o, "on disk");
    o.recompute = true;
    expect_bits(o, "recomputed");
    o = plain;
    o.order = Order::vertical;
    expect_bits(o, "vertical");
    o = plain;
    o.data = {.zero = 0, .canonical = true};
    expect_bits(o, "canonical");
  }
  TensorRun plain{.config = gpt2(), .tensor_ranks = 2, .batch = {1, 16}, .data = {.ranks = 2, .zero = 0, .canonical = true}};
  plain.config.dtype = DType::fp32;
  const auto expected = run(plain);
  for (const std::uint32_t zero : {1U, 2U, 3U}) {
    plain.data.zero = zero;
    expect_same(expected, run(plain), fmt::format("ZeRO-{}", zero));
  }
}

// With sequence parallelism, the gradients of such branches' norms are first summed over a rank's rows, so the bits differ from
// those without it.
TEST_F(TensorTest, BudgetsAndOrdersChangeNoBitOfNormsOfSums) {
  for (const auto* const family : {"gemma2", "olmo2"})
    for (const bool sequence : {false, true}) {
      TensorRun o{.config = with_norms(family), .tensor_ranks = 4, .sequence = sequence, .micro_batches = 3};
      o.config.dtype = DType::fp32;
      expect_no_bit_changes_in_little_memory(o);
    }
}

TEST_F(TensorTest, RanksOfABf16RunAgree) {
  for (const auto* const recipe : {"bf16", "split", "stochastic"})
    for (const auto& config : {gpt2(), with_norms("olmo2")}) {
      TensorRun o{.config = config, .tensor_ranks = 2, .sequence = true, .recipe = recipe};
      o.config.dtype = DType::bf16;
      expect_serial(o, 3e-2);
    }
}

TEST_F(TensorTest, GroupsOfParametersAreClippedAsOnOneRank) {
  TensorRun o{.config = gpt2(), .tensor_ranks = 2, .param_groups = "ln_:clip=0.01; c_attn|wte:clip=0.02"};
  expect_serial(o, kFp64);
}

// n blocks of attention and MLP. Forward and backward each sum every result once; with sequence parallelism a sum is a
// reduce-scatter, and a layer's input is gathered, once more in the backward.
TEST_F(TensorTest, TheLedgerIsTheFormula) {
  const std::uint64_t n = 2, m = 3, ranks = 2;
  for (const bool sequence : {false, true}) {
    TensorRun o{.config = gpt2(), .tensor_ranks = ranks, .sequence = sequence, .micro_batches = m};
    o.data = {.ranks = 2};
    o.before_use = false;
    o.chunk_elements = 1 << 20;  // a layer is one chunk
    o.store = new_store();
    const auto all = run_all(o);
    const std::uint64_t tokens = 32, width = 64, number = sizeof(double), activation = tokens * width * number;
    // Norms and biases of sums are held by all ranks, and so are the positions.
    const std::uint64_t held = n * 6 + 2 + 1, held_bytes = (n * 6 + 2 + 16) * width * number;
    const std::uint64_t sums = m * (4 * n + 2), survey = m * ranks * tokens * number;
    for (const auto& rank : all) {
      const auto reduced = rank.step.of("tp", comm::Operation::all_reduce),
                 scattered = rank.step.of("tp", comm::Operation::reduce_scatter),
                 gathered = rank.step.of("tp", comm::Operation::all_gather);
      EXPECT_EQ(held + (sequence ? 0 : sums), reduced.calls);
      EXPECT_EQ(held_bytes + (sequence ? 0 : sums * activation), reduced.payload_bytes);
      EXPECT_EQ(sequence ? sums : 0, scattered.calls);
      EXPECT_EQ(sequence ? sums * activation : 0, scattered.payload_bytes);
      EXPECT_EQ(m * (1 + (sequence ? 6 * n + 2 : 0)), gathered.calls);
      EXPECT_EQ(survey + (sequence ? m * (6 * n + 2) * activation : 0), gathered.payload_bytes);
    }
  }
}

// A branch with a norm of its result sums the result itself: the ranks exchange as much in a forward, and the sum once more in
// a recomputation, which needs it. Norms over all heads of q and k sum two numbers a token in the forward and two in the
// backward.
TEST_F(TensorTest, TheLedgerOfNormsOfSumsIsTheFormulaAndThePlan) {
  const std::uint64_t n = 2, m = 3, ranks = 2, tokens = 32, width = 48, number = sizeof(double);
  for (const auto* const family : {"gemma3", "olmo2"})
    for (const bool sequence : {false, true})
      for (const bool recompute : {false, true}) {
        const bool whole = std::string_view(family) == "olmo2";
        TensorRun o{.config = with_norms(family), .tensor_ranks = ranks, .sequence = sequence, .micro_batches = m};
        o.config.tied = true;
        o.recompute = recompute;
        o.before_use = false;
        o.chunk_elements = 1 << 20;  // a layer is one chunk
        o.store = new_store();
        auto planned = planned_bytes(o);
        const std::uint64_t activation = tokens * width * number, heads = whole ? m * n * (recompute ? 3 : 2) : 0;
        // Held by all ranks: the head's norm; in each block two norms of results, two norms before them, and one each of q and
        // k.
        const std::uint64_t held = 1 + n * (whole ? 2 : 6),
                            held_bytes = (width + n * (whole ? 2 * width : 4 * width + 2 * 12)) * number;
        const std::uint64_t of_branches = m * n * (recompute && !sequence ? 6 : 4) + (recompute && sequence ? m * n * 2 : 0);
        for (const auto& rank : run_all(o)) {
          const auto reduced = rank.step.of("tp", comm::Operation::all_reduce),
                     scattered = rank.step.of("tp", comm::Operation::reduce_scatter),
                     gathered = rank.step.of("tp", comm::Operation::all_gather);
          const auto sums = of_branches + 2 * m;  // the last term is of the embedding and the head
          EXPECT_EQ(held + heads + (sequence ? 0 : sums), reduced.calls) << family;
          EXPECT_EQ(held_bytes + heads * 2 * tokens * number + (sequence ? 0 : sums * activation), reduced.payload_bytes)
              << family;
          EXPECT_EQ(sequence ? sums : 0, scattered.calls) << family;
          EXPECT_EQ(sequence ? sums * activation : 0, scattered.payload_bytes) << family;
          const auto gathers = sequence ? m * n * (recompute ? 8 : 6) + 2 * m : 0;
          EXPECT_EQ(gathers + m, gathered.calls) << family;
          EXPECT_EQ(gathers * activation + m * ranks * tokens * number, gathered.payload_bytes) << family;
          EXPECT_EQ(planned[comm::Operation::all_reduce], static_cast<double>(reduced.sent_bytes)) << family;
          EXPECT_EQ(planned[comm::Operation::all_gather], static_cast<double>(gathered.sent_bytes)) << family;
          EXPECT_EQ(planned[comm::Operation::reduce_scatter], static_cast<double>(scattered.sent_bytes)) << family;
        }
      }
}

TEST_F(TensorTest, AStoppedRunGoesOnOnTheSameMeshAndOnAnother) {
  for (const auto& config : {gpt2(), llama(), with_norms("olmo2")}) {
    TensorRun o{.config = config, .tensor_ranks = 2, .data = {.ranks = 2, .zero = 1}, .steps = 4};
    const auto whole = end_of(run(o), 2);
    const auto stopped = stopped_after(2, o);
    for (const auto& [tensor, data] : {std::pair{1U, 2U}, {4U, 1U}, {8U, 1U}, {4U, 2U}}) {
      auto other = stopped;
      other.tensor_ranks = tensor;
      other.data = {.ranks = data, .zero = data > 1 ? 2U : 0U};
      other.micro_batches = o.micro_batches * o.data.ranks / data;
      expect_equal(whole, resume_as(other, stopped), kFp64, name_of(other));
    }
    expect_same(whole, run_all(stopped).front(), "the same mesh");
  }
}

// Ranks that share key-value heads add their gradients, which a mesh without twins would leave out in silence.
TEST_F(TensorTest, AMeshWithoutTheModelsTwinsIsRefused) {
  const TensorRun o{.config = llama(), .tensor_ranks = 4};
  const auto model = model_of(config_of(o, 0));
  const auto optimizer = make_optimizer(o.optimizer, {});
  auto request = request_of(o, *optimizer, 0);
  EXPECT_TRUE(plan(model, request, {}).fits);
  request.mesh = {.part = 4};
  EXPECT_THAT(thrown_by([&] { static_cast<void>(plan(model, request, {})); }).what(),
              HasSubstr("the model was made for one of part 2 × twin 2"));
}

TEST_F(TensorTest, WhatItCannotDoIsRefused) {
  const auto why = [](const auto& change) {
    TensorRun o{.config = llama(), .tensor_ranks = 2};
    change(o);
    return refusal_of(o);
  };
  EXPECT_EQ("", why([](TensorRun&) {}));
  EXPECT_THAT(why([](TensorRun& o) { o.tensor_ranks = 3; }),
              AllOf(HasSubstr("`tp` 3: it must divide 8 heads"), HasSubstr("nearest legal: 2 and 4")));
  for (const std::int64_t heads : {3, 7})
    EXPECT_THAT(why([&](TensorRun& o) {
                  o.tensor_ranks = 4;
                  o.config.heads = o.config.kv_heads = heads;
                  o.config.hidden = heads * 8;
                }),
                HasSubstr(fmt::format("it must divide {} heads", heads)));
  EXPECT_THAT(why([](TensorRun& o) { o.config.ffn = 75; }), HasSubstr("75 ffn columns"));
  EXPECT_THAT(why([](TensorRun& o) { o.sequence = true, o.batch = {1, 15}; }), HasSubstr("the 15 positions"));
  EXPECT_THAT(why([](TensorRun& o) { o.config.dtype = DType::fp16; }), HasSubstr("fp16"));
  EXPECT_THAT(why([](TensorRun& o) { o.config.layers = 4, o.config.skips = lm::SkipShape::u; }), HasSubstr("skip"));
  EXPECT_THAT(why([](TensorRun& o) { o.optimizer = "muon"; }), HasSubstr("whole matrices"));
  EXPECT_THAT(why([](TensorRun& o) { o.data = {.ranks = 2, .local = true}; }), HasSubstr("local SGD"));
}

}  // namespace
}  // namespace terrace::test
