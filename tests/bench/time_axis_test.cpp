// Percentiles of a histogram are within 0.4 % of the exact ones; an axis counts every byte once, in the second of its end.
#include <terrace/bench/disk/time_axis.h>

#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <vector>

#include <terrace/bench/statistics.h>

namespace terrace::bench {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(LatencyHistogram, PercentilesAreNearTheExactOnes) {
  std::mt19937_64 random(7);
  std::vector<std::uint64_t> values;
  LatencyHistogram histogram;
  for (int i = 0; i < 5000; ++i) {
    values.push_back(std::uint64_t{1} << random() % 40);
    values.back() += random() % values.back();
    histogram.add(values.back());
  }
  const Percentiles exact(values);
  for (const double fraction : {0.001, 0.25, 0.5, 0.9, 0.99, 0.999}) {
    const auto wanted = static_cast<double>(exact.at(fraction));
    EXPECT_NEAR(static_cast<double>(histogram.at(fraction)), wanted, 0.004 * wanted + 0.5) << fraction;
  }
  EXPECT_EQ(exact.at(1), histogram.most_ns());
  EXPECT_LE(histogram.at(1), histogram.most_ns());
}

TEST(LatencyHistogram, ShortLatenciesAreExactAndLongOnesCounted) {
  LatencyHistogram histogram;
  for (std::uint64_t ns = 0; ns < 256; ++ns) histogram.add(ns);
  for (const double fraction : {0.25, 0.5, 1.0})
    EXPECT_EQ(static_cast<std::uint64_t>(256 * fraction) - 1, histogram.at(fraction));
  LatencyHistogram longest;
  longest.add(~std::uint64_t{0});
  EXPECT_EQ(1U, longest.count());
  EXPECT_EQ(~std::uint64_t{0}, longest.most_ns());
  EXPECT_THROW((void)LatencyHistogram().at(0.5), std::logic_error);
}

TEST(LatencyHistogram, ASumIsAsIfAllWereInOne) {
  LatencyHistogram one, other, both;
  for (std::uint64_t i = 1; i < 1000; ++i) {
    (i % 3 == 0 ? one : other).add(i * 977);
    both.add(i * 977);
  }
  one.add(other);
  one.add(LatencyHistogram());
  EXPECT_EQ(both.count(), one.count());
  for (const double fraction : {0.1, 0.5, 0.99}) EXPECT_EQ(both.at(fraction), one.at(fraction));
}

TEST(TimeAxis, ARequestCountsInTheSecondOfItsEnd) {
  TimeAxis axis;
  axis.add(0, 10, 100);
  axis.add(kSecond - 1, 20, 200);
  axis.add(3 * kSecond, 40, 300);
  ASSERT_EQ(4U, axis.buckets().size());
  EXPECT_EQ(30U, axis.buckets()[0].bytes);
  EXPECT_EQ(2U, axis.buckets()[0].latency.count());
  EXPECT_EQ(0U, axis.buckets()[1].bytes) << "a second without an end is visible";
  EXPECT_EQ(40U, axis.buckets()[3].bytes);
  EXPECT_EQ(3U, axis.latencies().count());
}

TEST(TimeAxis, ALongPassHasWiderBucketsAndLosesNothing) {
  TimeAxis axis;
  const std::int64_t seconds = 3 * TimeAxis::kMostBuckets;
  for (std::int64_t s = 0; s < seconds; ++s) axis.add(s * kSecond, 1, 50);
  EXPECT_EQ(4, axis.bucket_s());
  EXPECT_LE(axis.buckets().size(), TimeAxis::kMostBuckets);
  for (const auto& bucket : axis.buckets()) EXPECT_EQ(4U, bucket.bytes);

  TimeAxis other;
  other.add(5 * kSecond, 7, 50);
  other.add(axis);
  EXPECT_EQ(4, other.bucket_s());
  EXPECT_EQ(11U, other.buckets()[1].bytes);
  axis.add(TimeAxis());
  EXPECT_EQ(static_cast<std::uint64_t>(seconds), axis.latencies().count());
}

}  // namespace
}  // namespace terrace::bench
