// Asynchronous orders compute with old weights, which they declare: losses, norms and weights are the bits of one rank that
// uses the same old weights for every micro-batch, for every number of ranks and under every budget.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>

#include <terrace/tests/parallel/pipeline/asynchronous_run.h>

namespace terrace {
namespace {

using AsynchronousRun = test::AsynchronousRun;

// Every case has at least as many micro-batches as ranks, so that every stage has made its weights in time.
TEST_F(AsynchronousRun, TwoBufferedWeightsAreThoseOfTheDeclaredStaleness) {
  const Case cases[] = {{1, 2, 3},  {2, 2, 1}, {2, 2, 2},  {2, 8, 3},  {3, 3, 4},  {4, 4, 3},
                        {4, 16, 2}, {3, 6, 3}, {5, 10, 2}, {4, 10, 2}, {4, 15, 2}, {8, 8, 2}};
  std::size_t at = 0;
  for (const auto& c : cases) {
    auto o = options("pipedream-2bw", c);
    o.sizes.dtype = at % 3 == 0 ? DType::fp32 : at % 3 == 1 ? DType::bf16 : DType::fp64;
    o.before_use = at % 2 == 0;  // clipped
    o.recompute = at % 4 == 1;
    expect_declared(o, "pipedream-2bw", c, to_text("pipedream-2bw", c));
    ++at;
  }
}

// A loss scale is a power of two, so it changes no bit; the verdict clips by the norm without the scale.
TEST_F(AsynchronousRun, ALossScaleChangesNoBitOfClippedUpdates) {
  for (const auto dtype : {DType::fp32, DType::bf16}) {
    auto o = options("pipedream-2bw", {2, 2, 3});
    o.sizes.dtype = dtype;
    o.before_use = true;
    const auto plain = run(o, "plain");
    o.loss_scale = "1024";
    const auto scaled = run(o, "scaled");
    for (std::size_t r = 0; r < plain.size(); ++r) {
      EXPECT_GT(plain[r].norms.front(), toy::kGreatestNorm) << "nothing is clipped";
      EXPECT_EQ(scaled[r].losses, plain[r].losses);
      EXPECT_EQ(scaled[r].norms, plain[r].norms);
      EXPECT_EQ(scaled[r].hash, plain[r].hash) << "rank " << r;
    }
  }
}

TEST_F(AsynchronousRun, StashedWeightsAreThoseOfTheDeclaredStaleness) {
  const Case cases[] = {{1, 1, 4}, {2, 1, 2}, {2, 1, 8}, {4, 1, 8}, {3, 1, 12}, {4, 1, 2},
                        {8, 1, 8}, {2, 2, 4}, {3, 2, 5}, {4, 3, 4}, {5, 1, 10}, {4, 4, 3}};
  std::size_t at = 0;
  for (const auto& c : cases) {
    auto o = options("pipedream", c);
    o.sizes.dtype = at % 3 == 0 ? DType::fp32 : at % 3 == 1 ? DType::bf16 : DType::fp64;
    o.recompute = at % 4 == 1;
    expect_declared(o, "pipedream", c, to_text("pipedream", c));
    ++at;
  }
}

// Old weights move between the tiers like any others, and every byte of them was planned.
TEST_F(AsynchronousRun, OldWeightsLiveInTheTiersAndChangeNothing) {
  struct Row {
    const char* order;
    Case c;
    DType dtype;
    bool clipped, disk;
    std::uint32_t zero = 0;  // over two data ranks; 0: one data rank
  };
  const Row rows[] = {
      {"pipedream-2bw", {3, 4, 3}, DType::fp32, true, false},   {"pipedream-2bw", {3, 4, 3}, DType::bf16, false, true},
      {"pipedream-2bw", {2, 3, 2}, DType::fp64, true, true},    {"pipedream", {4, 1, 8}, DType::fp32, false, false},
      {"pipedream", {3, 1, 6}, DType::bf16, false, true},       {"pipedream", {3, 2, 4}, DType::fp64, false, true},
      {"pipedream-2bw", {3, 4, 2}, DType::bf16, true, true, 1}, {"pipedream", {3, 1, 6}, DType::fp32, false, true, 2},
      {"pipedream-2bw", {2, 3, 3}, DType::fp32, true, true, 3}, {"pipedream", {3, 1, 6}, DType::bf16, false, true, 3}};
  std::uint64_t moved = 0, read = 0;
  for (const auto& row : rows) {
    auto o = options(row.order, row.c, 2 * row.c.ranks);
    o.sizes.width = 64;
    o.sizes.dtype = row.dtype;
    o.before_use = row.clipped;
    if (row.zero != 0) o.data = {.ranks = 2, .zero = row.zero, .canonical = true};
    test::squeeze_stages(o, row.disk);
    const auto what = fmt::format("{}, {}{}", to_text(row.order, row.c), name_of(row.dtype), row.disk ? ", disk" : "") +
                      fmt::format(", ZeRO-{}", row.zero);
    for (const auto& r : expect_declared(o, row.order, row.c, what)) {
      for (const auto tier : {Tier::device, Tier::host}) EXPECT_EQ(r.peak[tier], r.planned.peak_bytes[tier]) << what;
      EXPECT_EQ(r.traffic.back().upload, r.planned.step_traffic.back().upload) << what;
      EXPECT_EQ(r.traffic.back().write, r.planned.step_traffic.back().write) << what;
      moved += r.traffic.back().upload;
      read += r.traffic.back().read;
    }
  }
  EXPECT_GT(moved, 0U);
  EXPECT_GT(read, 0U);
}

// The comparison would notice wrong versions: with the newest weights throughout, a run ends with other weights.
TEST_F(AsynchronousRun, StalenessIsReal) {
  const Case c{3, 3, 4};
  for (const std::string order : {"pipedream-2bw", "pipedream"}) {
    const auto o = options(order, c);
    const toy::RunResult stale = run(o, order).front();
    const auto fresh =
        toy::StaleOracle(o, c.micro_batches, [&](std::uint32_t, std::uint32_t m) { return m / c.micro_batches; }).run();
    EXPECT_NE(stale.hash, fresh.hash) << order;
  }
}

// A step ends drained, so a run resumed there continues as if it had not stopped.
TEST_F(AsynchronousRun, ResumesWhereItDrained) {
  for (const std::string order : {"pipedream-2bw", "pipedream"}) {
    for (const std::uint32_t zero : {0U, 1U, 3U}) {
      const Case c{3, 3, 3};
      auto o = options(order, c);
      o.steps = 4;
      o.before_use = order == "pipedream-2bw";
      if (zero != 0) o.data = {.ranks = 2, .zero = zero, .canonical = true};
      const auto wanted = oracle(o, order, c);
      o.store = folder_ / fmt::format("{}-{}", order, zero);
      o.commit_after = 2;
      const auto before = toy::run_ranks(o);
      for (const auto& error : before.errors) ASSERT_EQ(error, "") << order;
      o.commit_after = 0;
      o.resume = true;
      const auto after = toy::run_ranks(o);
      for (std::size_t r = 0; r < after.ranks.size(); ++r) {
        ASSERT_EQ(after.errors[r], "") << order << ", rank " << r;
        auto losses = before.ranks[r].losses;
        losses.insert(losses.end(), after.ranks[r].losses.begin(), after.ranks[r].losses.end());
        EXPECT_EQ(losses, wanted.losses) << order << ", rank " << r;
        EXPECT_EQ(after.ranks[r].hash, wanted.hash) << order << ", rank " << r;
      }
    }
  }
}

// Messages that are late at random cause no deadlock, and no bit depends on the order in which they arrive.
TEST_F(AsynchronousRun, NoDelayOfAMessageChangesAnything) {
  const auto* const seed_text = std::getenv("TERRACE_SEED");
  const std::uint64_t seed = seed_text ? std::strtoull(seed_text, nullptr, 10) : 1;
  for (const auto& [order, clipped, zero] : {std::tuple<std::string, bool, std::uint32_t>{"pipedream-2bw", true, 0},
                                             {"pipedream-2bw", false, 0},
                                             {"pipedream", false, 0},
                                             {"pipedream-2bw", true, 1},
                                             {"pipedream-2bw", true, 3},
                                             {"pipedream", false, 3}}) {
    const Case c{zero == 0 ? 4U : 3U, 4, 3};
    auto o = options(order, c);
    if (zero != 0) o.data = {.ranks = 2, .zero = zero, .canonical = true};
    o.steps = 1;
    o.before_use = clipped;
    o.depth = 1;
    const auto wanted = oracle(o, order, c);
    o.store = folder_ / ("late" + std::to_string(runs_++));
    const auto late =
        toy::run_ranks(o, {std::chrono::seconds(60)}, {.seed = seed, .longest_delay = std::chrono::microseconds(500)});
    for (std::size_t r = 0; r < late.ranks.size(); ++r) {
      ASSERT_EQ(late.errors[r], "") << order << ", rank " << r << ", seed " << seed;
      EXPECT_EQ(late.ranks[r].hash, wanted.hash) << order << ", rank " << r << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace terrace
