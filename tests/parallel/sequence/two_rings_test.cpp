// Context parallelism by a ring of keys and a ring of values: ranks that share the positions of every sequence train what one
// rank trains, alone and together with every other kind of parallelism; they exchange and hold what the formulas say.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <terrace/parallel/layers/attention/two_rings.h>
#include <terrace/tests/parallel/sequence/shared_positions.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kSeq = positions_of(Sharing::two_rings);

TensorRun of(lm::ModelConfig config, std::uint32_t ranks, std::int64_t window = 0) {
  return shared(Sharing::two_rings, std::move(config), ranks, window);
}

class TwoRings : public TensorRuns {};

// Slices have 6 positions: windows smaller than a slice, a little larger, and of all positions.
TEST_F(TwoRings, WindowsTrainWhatOneRankTrains) {
  for (const auto& config : {gpt2(), llama()}) {
    for (const std::int64_t window : {1, 2, 7, 8, 24}) expect_serial(of(config, 4, window), kFp64);
    auto o = of(config, 4);
    o.config.window = layers::Windows({5, 0});
    o.config.attention_cap = 0.5;
    expect_serial(o, kFp64);
  }
}

// Documents of five positions: they end within slices.
TEST_F(TwoRings, DocumentsTrainWhatOneRankTrains) {
  for (const auto& config : {gpt2(), llama()})
    for (const std::int64_t window : {0, 3}) {
      auto o = of(config, 4, window);
      o.config.attention_cap = window;
      o.documents = [](Split, auto, auto, auto numbers) {
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int32_t>(i % kSeq / 5);
      };
      expect_serial(o, kFp64);
    }
}

TEST_F(TwoRings, RanksOfABf16RunAgree) {
  auto o = of(llama(), 4);
  o.recipe = "bf16";
  o.config.dtype = DType::bf16;
  expect_serial(o, 3e-2);
}

// The forward and the backward have c − 1 hops of keys and as many of values. In the backward each rank has gradients of all
// keys and values, and each rank receives the sum for its own ones. A window leaves out the hops that no query needs.
TEST_F(TwoRings, TheLedgerIsTheFormula) {
  OneIn chosen(3);
  const std::uint64_t blocks = 2, m = 3, ranks = 4;
  for (const auto dtype : {DType::fp64, DType::bf16})
    for (const bool recompute : {false, true})
      for (const auto& [window, hops] : {std::pair{0, 3U}, {1, 0U}, {2, 1U}, {7, 1U}, {8, 2U}}) {
        if (!chosen()) continue;
        SCOPED_TRACE(fmt::format("{} window {} recompute {}", name_of(dtype), window, recompute));
        auto o = of(llama(), ranks, window);
        o.config.dtype = dtype;
        if (dtype == DType::bf16) o.recipe = "bf16";
        o.micro_batches = m;
        o.recompute = recompute;
        o.before_use = false;
        o.store = new_store();
        const auto transformer = lm::transformer_of(lm::complete(config_of(o, 0)));
        const auto keys = static_cast<std::uint64_t>(2 * kSeq / ranks * transformer.kv_heads_here() * transformer.head_dim());
        const std::uint64_t number = size_of(dtype), sum = dtype == DType::fp64 ? 8 : 4;
        const auto planned = planned_bytes(o)[comm::Operation::all_to_all];
        const auto rings = recompute ? 6 : 4;
        for (const auto& rank : run_all(o)) {
          const auto hopped = rank.step.of("cp", comm::Operation::all_to_all),
                     home = rank.step.of("cp", comm::Operation::reduce_scatter);
          EXPECT_EQ(blocks * m * rings * hops, hopped.calls);
          EXPECT_EQ(blocks * m * rings * hops * keys * number, hopped.sent_bytes);
          EXPECT_EQ(planned, static_cast<double>(hopped.sent_bytes));
          EXPECT_EQ(blocks * m * 2, home.calls);
          EXPECT_EQ(blocks * m * 2 * ranks * keys * sum, home.payload_bytes);
        }
      }
}

// b sequences · a heads · s² / c scores.
TEST_F(TwoRings, ARankHasTheScoresOfItsQueries) {
  for (const std::uint32_t ranks : {2U, 3U, 4U, 8U}) {
    auto config = of(llama(), ranks).config;
    config.place.mesh.context = ranks;
    const auto model = lm::make_model(config);
    const auto saved = model.layers[1]->facts({2, kSeq / ranks}).saved;
    const auto scores = std::ranges::find(saved, "probabilities", &TensorSpec::name);
    ASSERT_NE(scores, saved.end());
    EXPECT_EQ(2 * 8 * kSeq * kSeq / ranks, scores->shape.elements());
  }
}

// All hops run beside a product, and the gradients of values beside the softmax; those of keys come last, and are waited for.
TEST_F(TwoRings, HopsRunBesideTheProductsInTheSimulation) {
  for (const std::uint32_t ranks : {2U, 4U, 8U}) {
    const double hops = 4 * (ranks - 1);
    EXPECT_NEAR((hops + 1) / (hops + 2), hidden_share_of_context(of(llama(), ranks)), 1e-9) << ranks << " ranks";
  }
}

TEST_F(TwoRings, RanksAgreeOnTheirSteps) { expect_ranks_agree(of(llama(), 4, 8), {900 * kKiB, 3 * kMiB, 0}); }

TEST_F(TwoRings, OfSomeRanksAreRefused) {
  auto o = of(llama(), 4);
  o.config.place.ring = 2;
  EXPECT_THAT(refusal_of(o), HasSubstr("the nearest is a ring of 4"));
}

}  // namespace
}  // namespace terrace::test
