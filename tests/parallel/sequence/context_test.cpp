// Context parallelism by all-to-alls of heads (Ulysses): ranks that share the positions of every sequence train what one rank
// trains, alone and together with every other kind of parallelism.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/parallel/layers/attention/head_deal.h>
#include <terrace/tests/parallel/sequence/shared_positions.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

TensorRun of(lm::ModelConfig config, std::uint32_t ranks) { return shared(Sharing::heads, std::move(config), ranks); }

class Context : public TensorRuns {};

// Covers norms of q and k (of each head, or of all heads), norms of results, and capped scores. Ranks share heads, a ring,
// both, or two rings.
TEST_F(Context, NormsOfQueriesKeysAndResultsTrainWhatOneRankTrains) {
  for (const auto* const family : {"qwen3", "olmo2", "gemma3"})
    for (const auto& [ranks, ring, two] : {std::tuple{3U, 1U, false}, {2U, 2U, false}, {4U, 2U, false}, {3U, 3U, true}}) {
      auto o = of(llama(), ranks);
      o.config.family = lm::family_named(family);
      o.config.head_size = 12;
      o.config.place.ring = ring;
      o.config.place.two_rings = two;
      if (std::string_view(family) == "gemma3") {  // one of the two blocks has a window and a rotation of its own
        o.config.window = layers::Windows({5, 0});
        o.config.query_scalar = 7;
        o.config.logit_cap = 2;
        o.config.attention_cap = 1.5;
      }
      o.recompute = ranks == 3;
      o.schedule = ring == 2 && ranks == 2 ? "1f1b" : "";
      o.squeezed = o.disk_tier = ranks == 4;
      SCOPED_TRACE(fmt::format("{}, {} ranks, rings of {}", family, ranks, ring));
      expect_serial(o, kFp64);
    }
}

// A skip is added in front of attention: each rank adds its slice.
TEST_F(Context, SkipConnectionsTrainWhatOneRankTrains) {
  for (const auto& [ranks, ring, two] : {std::tuple{3U, 1U, false}, {2U, 2U, false}, {4U, 2U, false}, {3U, 3U, true}})
    for (const char* const schedule : {"", "1f1b", "zb-h1"}) {
      auto o = of(ring == 2 ? llama() : gpt2(), ranks);
      o.config.place.ring = ring;
      o.config.place.two_rings = two;
      o.config.layers = 4;
      o.config.skips = lm::SkipShape::u;
      o.schedule = schedule;
      o.recompute = ring == 2;
      o.squeezed = o.disk_tier = ranks == 3;
      if (ranks == 2) o.data = {.ranks = 2, .zero = 3};
      SCOPED_TRACE(fmt::format("{} ranks, rings of {}", ranks, ring));
      expect_serial(o, kFp64);
    }
}

// Of three heads on four ranks, one rank gets none; of seven, one rank gets fewer; six key-value groups of two heads are split
// over four ranks.
TEST_F(Context, HeadsNeedNotDivide) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {7, 7}, {7, 1}, {12, 6}, {6, 2}}) {
    auto config = llama();
    config.hidden = heads * 8;
    config.heads = heads;
    config.kv_heads = kv_heads;
    for (const std::uint32_t ranks : {2U, 4U}) {
      SCOPED_TRACE(fmt::format("{} heads, {} of keys and values, on {} ranks", heads, kv_heads, ranks));
      expect_serial(of(config, ranks), kFp64);
    }
  }
}

// Per layer, two all-to-alls in the forward and two in the backward: one of q, k and v, one of the attention's result.
TEST_F(Context, TheLedgerIsTheFormula) {
  const std::uint64_t blocks = 2, m = 3, ranks = 4;
  for (const bool recompute : {false, true}) {
    auto o = of(gpt2(), ranks);
    o.micro_batches = m;
    o.recompute = recompute;
    o.before_use = false;
    o.store = new_store();
    const std::uint64_t tokens = 2 * 24 / ranks, width = 64, number = sizeof(double);
    const auto planned = planned_bytes(o)[comm::Operation::all_to_all];
    const std::uint64_t both_ways = (3 + 1) * tokens * width * number, sent = both_ways * (ranks - 1) / ranks;
    for (const auto& rank : run_all(o)) {
      const auto entry = rank.step.of("cp", comm::Operation::all_to_all);
      const auto times = blocks * m * (recompute ? 3 : 2);
      EXPECT_EQ(2 * times, entry.calls);
      EXPECT_EQ(sent * times, entry.sent_bytes);
      EXPECT_EQ(planned, static_cast<double>(entry.sent_bytes));
    }
  }
}

// Seven heads on four ranks: each pair of ranks exchanges its own number of bytes, and all ranks plan the same steps.
TEST_F(Context, RanksAgreeOnTheirStepsAndOnTheBytesBetweenEachPair) {
  auto o = of(llama(), 4);
  o.config.hidden = 56;
  o.config.heads = o.config.kv_heads = 7;
  auto ranks = expect_ranks_agree(o, {700 * kKiB, 3 * kMiB, 0});
  ASSERT_EQ(4U, ranks.size());
  ranks[3].model = model_of(config_of(o, 0));
  EXPECT_THROW(check_collectives(ranks), Error) << "the last rank has the heads of the first";
}

TEST_F(Context, WhatDoesNotWorkIsRefusedWithWhatDoes) {
  const auto why = [](auto change) {
    auto o = of(gpt2(), 2);
    change(o);
    return refusal_of(o);
  };
  EXPECT_EQ(why([](TensorRun&) {}), "");
  EXPECT_THAT(why([](TensorRun& o) { o.data.canonical = true; }), HasSubstr("canonical-reduction"));
  EXPECT_THAT(why([](TensorRun& o) { o.data = {.ranks = 2, .local = true}; }), HasSubstr("local SGD"));
  EXPECT_THAT(why([](TensorRun& o) { o.schedule = "chimera"; }), HasSubstr("two directions"));
  const auto of_two = model_of(config_of(of(gpt2(), 2), 0));
  const auto optimizer = make_optimizer("adamw", {});
  EXPECT_THAT(refusal_of([&] { static_cast<void>(plan(of_two, request_of(of(gpt2(), 4), *optimizer, 0), {})); }),
              HasSubstr("the model was made for 2"));
}

// Each query head goes to one rank, which has the key-value head that it reads at the matching place.
TEST(HeadDeal, GivesEachHeadItsKeys) {
  for (std::int64_t kv = 1; kv <= 8; ++kv)
    for (std::int64_t group = 1; group <= 6; ++group)
      for (int ranks = 1; ranks <= 9; ++ranks) {
        const layers::HeadDeal deal{kv * group, kv, ranks};
        std::int64_t next = 0;
        for (int r = 0; r < ranks; ++r) {
          const auto [begin, count] = deal.queries(r);
          const auto keys = deal.keys(r);
          if (count == 0) {
            EXPECT_TRUE(keys.empty());
            continue;
          }
          EXPECT_EQ(next, begin);
          next += count;
          ASSERT_EQ(0, count % static_cast<std::int64_t>(keys.size()));
          const auto sharing = count / static_cast<std::int64_t>(keys.size());
          for (std::int64_t i = 0; i < count; ++i)
            EXPECT_EQ((begin + i) / group, keys[static_cast<std::size_t>(i / sharing)])
                << kv << " × " << group << " on " << ranks;
          if (kv % ranks == 0) {
            EXPECT_EQ(kv / ranks, static_cast<std::int64_t>(keys.size())) << "no key-value head is sent twice";
          }
        }
        EXPECT_EQ(kv * group, next);
      }
}

}  // namespace
}  // namespace terrace::test
