// Context parallelism by a ring of keys and values, with zigzag slices and with windows; sharing_contract_test.cpp
// has what holds for every way of sharing positions.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <terrace/parallel/layers/attention/ring.h>
#include <terrace/tests/parallel/sequence/shared_positions.h>

namespace terrace::test {
namespace {

constexpr std::int64_t kSeq = positions_of(Sharing::ring);

TensorRun of(lm::ModelConfig config, std::uint32_t ranks, std::int64_t window = 0) {
  return shared(Sharing::ring, std::move(config), ranks, window);
}

lm::ModelConfig grouped(std::int64_t heads, std::int64_t kv_heads) {
  auto config = llama();
  config.hidden = heads * 8;
  config.heads = heads;
  config.kv_heads = kv_heads;
  return config;
}

class Ring : public TensorRuns {};

TEST_F(Ring, HeadsNeedNotDivideAndTablesMayBeTiedOrNot) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {7, 1}, {6, 2}})
    for (const bool tied : {false, true}) {
      auto config = grouped(heads, kv_heads);
      config.tied = tied;
      SCOPED_TRACE(fmt::format("{} heads, {} of keys and values", heads, kv_heads));
      expect_serial(of(config, 4), kFp64);
    }
}

// Slices have 12 positions: windows within a slice, of one slice and a half, of all positions, and of a single one.
TEST_F(Ring, WindowsTrainWhatOneRankTrains) {
  for (const auto& config : {gpt2(), llama()})
    for (const std::int64_t window : {1, 2, 7, 13, 14, 20, 48}) expect_serial(of(config, 4, window), kFp64);
}

// Several ranks hold each place of the ring and exchange heads there. Three ranks of a place cut its zigzag within a chunk.
TEST_F(Ring, WithHeadsTrainsWhatOneRankTrains) {
  OneIn chosen(2);
  for (const auto& config : {gpt2(), llama()})
    for (const auto& [ranks, ring] : {std::pair{4U, 2U}, {6U, 2U}, {6U, 3U}, {8U, 4U}, {8U, 2U}})
      for (const std::int64_t window : {0, 20}) {
        if (!chosen()) continue;
        auto o = of(config, ranks, window);
        o.config.place.ring = ring;
        if (window != 0 && ring == 2 && ranks != 6) continue;
        expect_serial(o, kFp64);
        if (window != 0 || ranks == 8) continue;
        o.config.dtype = DType::fp32;
        o.recompute = true;
        expect_serial(o, kFp32);
      }
}

TEST_F(Ring, WithHeadsNeedsNoEqualNumbersAndGoesWithTheOtherAxes) {
  for (const auto& [heads, kv_heads] : {std::pair{3, 3}, {7, 1}, {6, 2}}) {
    auto o = of(grouped(heads, kv_heads), 4);
    o.config.place.ring = 2;
    SCOPED_TRACE(fmt::format("{} heads, {} of keys and values", heads, kv_heads));
    expect_serial(o, kFp64);
  }
  for (const auto& [config, data, tensor, schedule, zero] : {std::tuple{gpt2(), 2U, 1U, "", 3U},
                                                             {llama(), 2U, 1U, "", 1U},
                                                             {gpt2(), 1U, 2U, "", 0U},
                                                             {llama(), 1U, 2U, "", 3U},
                                                             {llama(), 1U, 1U, "zb-h1", 2U}}) {
    auto o = of(config, 4);
    o.config.place.ring = 2;
    o.data = {.ranks = data, .zero = zero};
    o.tensor_ranks = tensor;
    o.sequence = tensor > 1 && zero == 3;
    o.schedule = schedule;
    o.squeezed = o.disk_tier = zero == 3;
    expect_serial(o, kFp64);
  }
}

// In each direction two all-to-alls of heads between the ranks of a place, as without a ring; and the ring's hops, with the
// keys and values of a rank's heads at all positions of the place.
TEST_F(Ring, WithHeadsTheLedgerIsTheFormula) {
  const std::uint64_t blocks = 2, m = 2, ranks = 4, ring = 2, heads = ranks / ring, number = sizeof(double);
  auto o = of(gpt2(), ranks);
  o.config.place.ring = ring;
  o.micro_batches = m;
  o.before_use = false;
  o.store = new_store();
  const auto planned = planned_bytes(o)[comm::Operation::all_to_all];
  const std::uint64_t tokens = 2 * kSeq / ranks, width = 64, exchanged = (3 + 1) * tokens * width * (heads - 1) / heads,
                      keys = 2 * tokens * width, hops = 3 * ring - 2;
  for (const auto& rank : run_all(o)) {
    const auto entry = rank.step.of("cp", comm::Operation::all_to_all);
    EXPECT_EQ(blocks * m * (4 + hops), entry.calls);
    EXPECT_EQ(blocks * m * number * (2 * exchanged + hops * keys), entry.sent_bytes);
    EXPECT_EQ(planned, static_cast<double>(entry.sent_bytes));
  }
}

TEST_F(Ring, UlyssesHasTheSameWindows) {
  for (const auto& config : {gpt2(), llama()}) {
    auto o = of(config, 4, 13);
    o.config.place.ring = 1;
    expect_serial(o, kFp64);
  }
}

// True for one micro-batch on a rank: with more, ZeRO-2 and ZeRO-3 add the gradients in another order.
TEST_F(Ring, StagesOfZeroChangeNoBit) {
  std::optional<TensorResult> first;
  for (std::uint32_t zero = 0; zero <= 3; ++zero) {
    auto o = of(llama(), 4);
    o.micro_batches = 1;
    o.data.zero = zero;
    o.store = new_store();
    const auto found = run_all(o).front();
    if (!first) first = found;
    EXPECT_EQ(first_difference(found.weights, first->weights), "") << "zero " << zero;
    EXPECT_EQ(found.losses, first->losses);
  }
}

// The forward has c - 1 hops of keys and values; the backward has as many, and c hops of their gradients, in the dtype of sums.
// With a window there are fewer: one hop for every further slice that a query sees.
TEST_F(Ring, TheLedgerIsTheFormula) {
  OneIn chosen(3);
  const std::uint64_t blocks = 2, m = 3, ranks = 4;
  for (const auto dtype : {DType::fp64, DType::bf16})
    for (const bool recompute : {false, true})
      for (const auto& [window, hops] : {std::pair{0, 3U}, {1, 0U}, {2, 1U}, {13, 1U}, {14, 2U}, {48, 3U}}) {
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
        const std::uint64_t elements = static_cast<std::uint64_t>(2 * kSeq / ranks * 2 * transformer.kv_heads_here() *
                                                                  transformer.head_dim()),
                            number = size_of(dtype), sum = dtype == DType::fp64 ? 8 : 4;
        const auto planned = planned_bytes(o)[comm::Operation::all_to_all];
        const std::uint64_t keys = (recompute ? 3 : 2) * hops, gradients = hops == 0 ? 0 : hops + 1;
        for (const auto& rank : run_all(o)) {
          const auto entry = rank.step.of("cp", comm::Operation::all_to_all);
          EXPECT_EQ(blocks * m * (keys + gradients), entry.calls);
          EXPECT_EQ(blocks * m * elements * (keys * number + gradients * sum), entry.sent_bytes);
          EXPECT_EQ(planned, static_cast<double>(entry.sent_bytes));
        }
      }
}

// Every hop runs beside a computation of attention, except a backward's last one, which returns the gradients. Two buffers are
// enough.
TEST_F(Ring, HopsRunBesideTheAttendingInTheSimulation) {
  for (const std::uint32_t ranks : {2U, 4U, 8U}) {
    const double hops = ranks - 1;
    EXPECT_NEAR(3 * hops / (3 * hops + 1), hidden_share_of_context(of(llama(), ranks)), 1e-9) << ranks << " ranks";
  }
}

// A hop has two whole pairs of chunks; before the first hop, a rank has one whole pair and two of a chunk with itself, which
// are about half a pair each.
TEST(RingAttention, EveryRankOfAZigzagHasEquallyMuchToDoAtEveryHop) {
  for (const std::uint32_t ranks : {2U, 3U, 5U, 8U}) {
    auto config = llama();
    config.seq_len = 2 * ranks * 6;
    auto transformer = lm::transformer_of(lm::complete(config));
    transformer.place = {.mesh = {.context = ranks}, .ring = ranks, .zigzag = true};
    const layers::Ring ring(transformer, 0, {}, {}, 0);
    const std::int64_t chunk = 6, whole = chunk * chunk, own = chunk * (chunk + 1) / 2;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(2 * own + whole, ring.pairs(rank, {1, 2 * chunk}, 0));
      for (std::uint32_t hops = 1; hops < ranks; ++hops) EXPECT_EQ(2 * whole, ring.pairs(rank, {1, 2 * chunk}, hops));
    }
  }
}

// Each pair of positions is computed on exactly one rank.
TEST(RingAttention, EveryPairIsComputedOnceWithEveryWindow) {
  for (const std::uint32_t ranks : {2U, 3U, 4U})
    for (std::int64_t window = 0; window <= 24; ++window) {
      auto config = llama();
      config.seq_len = 24;
      auto transformer = lm::transformer_of(lm::complete(config));
      transformer.place = {.mesh = {.context = ranks}, .ring = ranks, .zigzag = window == 0};
      const layers::Ring ring(transformer, window, {}, {}, 0);
      std::int64_t found = 0, expected = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank)
        for (std::uint32_t hops = 0; hops <= ring.hops({1, 24 / ranks}); ++hops)
          found += ring.pairs(rank, {1, 24 / ranks}, hops);
      for (std::int64_t t = 0; t < 24; ++t) expected += window == 0 ? t + 1 : std::min(window, t + 1);
      EXPECT_EQ(expected, found) << ranks << " ranks, window " << window;
    }
}

TEST_F(Ring, RanksAgreeOnTheirStepsAndOnTheBytesBetweenEachPair) {
  for (const auto& [window, ring] : {std::pair{0, 4U}, {14, 4U}, {0, 2U}}) {
    auto o = of(grouped(7, 7), 4, window);
    o.config.place.ring = ring;
    expect_ranks_agree(o, {900 * kKiB, 3 * kMiB, 0});
  }
}

}  // namespace
}  // namespace terrace::test
