// Medians, spreads and percentiles follow the textbook for any measurements.
#include <terrace/bench/statistics.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include <terrace/tests/support/environment.h>

namespace terrace::bench {
namespace {

TEST(Statistics, MedianOfOddAndEvenCounts) {
  EXPECT_EQ(3, median({5, 1, 3}));
  EXPECT_EQ(2.5, median({4, 1, 2, 3}));
  EXPECT_EQ(7, median({7}));
  EXPECT_THROW((void)median({}), std::logic_error);
}

TEST(Statistics, SpreadIsTheRangeOverTheMedian) {
  EXPECT_DOUBLE_EQ(0.5, spread({2, 1.5, 2.5}));
  EXPECT_EQ(0, spread({4}));
  EXPECT_EQ(0, spread({0, 0}));
}

TEST(Statistics, PercentilesOfAHundredAreTheirRanks) {
  std::vector<std::uint64_t> values(100);
  for (std::uint64_t i = 0; i < values.size(); ++i) values[i] = 100 - i;  // 1 … 100 in descending order
  const Percentiles p(values);
  EXPECT_EQ(50U, p.at(0.5));
  EXPECT_EQ(99U, p.at(0.99));
  EXPECT_EQ(100U, p.at(0.999));
  EXPECT_EQ(100U, p.at(1));
  EXPECT_EQ(1U, p.at(1e-9));
}

// The definition, by counting: the least value that is not exceeded by at least this fraction of all values.
std::uint64_t by_counting(const std::vector<std::uint64_t>& values, int per_mille) {
  auto sorted = values;
  std::ranges::sort(sorted);
  for (const auto candidate : sorted) {
    const auto not_above = std::ranges::count_if(values, [&](auto v) { return v <= candidate; });
    if (static_cast<std::uint64_t>(not_above) * 1000 >= static_cast<std::uint64_t>(per_mille) * values.size()) return candidate;
  }
  return sorted.back();
}

TEST(Statistics, PercentilesAgreeWithCounting) {
  const auto seed = test::test_seed();
  std::mt19937 draw(seed);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::uint64_t> values(1 + draw() % 300);
    for (auto& v : values) v = draw() % 50;  // many ties
    const Percentiles p(values);
    for (const int per_mille : {500, 900, 990, 999, 1000})
      ASSERT_EQ(by_counting(values, per_mille), p.at(per_mille / 1000.0))
          << "seed " << seed << ", round " << round << ", " << values.size() << " values, " << per_mille << " per mille";
  }
}

}  // namespace
}  // namespace terrace::bench
