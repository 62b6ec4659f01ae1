// Stripes in proportion to weights: every byte of the flat space has exactly one place, and no two bytes share one.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/offload/store/stripes.h>

namespace terrace {
namespace {

using Weights = std::vector<std::uint32_t>;

TEST(Stripes, EveryByteHasOnePlaceAndFilesAreAsLongAsTheirStripes) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Weights weights(1 + random() % 5);
    for (auto& w : weights) w = 1 + static_cast<std::uint32_t>(random() % store::Stripes::kMostWeight);
    const store::Stripes stripes(kPageBytes * (1 + random() % 4), weights);
    const auto capacity = kPageBytes * (1 + random() % 300);
    std::vector<std::map<std::uint64_t, std::uint64_t>> taken(weights.size());  // for each file: start → end
    std::uint64_t at = 0;
    while (at < capacity) {  // requests of random length, which may end inside a stripe
      const auto bytes = std::min(capacity - at, kPageBytes * (1 + random() % 9));
      std::uint64_t next = 0;
      for (const auto& piece : stripes.pieces(at, bytes)) {
        ASSERT_EQ(next, piece.at);
        next += piece.bytes;
        auto& file = taken.at(static_cast<std::size_t>(piece.file));
        ASSERT_TRUE(file.emplace(piece.offset, piece.offset + piece.bytes).second) << "two bytes in one place";
      }
      ASSERT_EQ(bytes, next);
      at += bytes;
    }
    std::uint64_t all = 0;
    for (std::size_t f = 0; f < weights.size(); ++f) {
      std::uint64_t end = 0;
      for (const auto& [begin, stop] : taken[f]) {
        ASSERT_EQ(end, begin) << "a gap, or an overlap, in file " << f;
        end = stop;
      }
      EXPECT_EQ(end, stripes.file_bytes(f, capacity)) << "file " << f;
      all += end;
    }
    EXPECT_EQ(capacity, all);
  }
}

TEST(Stripes, EachFileGetsItsShareOfEveryCycle) {
  const store::Stripes stripes(kPageBytes, {3, 1, 2});
  std::map<int, int> count;
  for (const auto& piece : stripes.pieces(6 * kPageBytes, 6 * kPageBytes)) ++count[piece.file];
  EXPECT_EQ((std::map<int, int>{{0, 3}, {1, 1}, {2, 2}}), count);
  // A file's stripes are spread over the cycle, so that a few consecutive stripes use several files.
  std::vector<int> order;
  for (const auto& piece : stripes.pieces(0, 6 * kPageBytes)) order.push_back(piece.file);
  EXPECT_EQ((std::vector<int>{0, 2, 0, 1, 2, 0}), order);
}

TEST(Stripes, EqualWeightsGoRoundRobin) {
  const store::Stripes stripes(kPageBytes, {1, 1});
  for (std::uint64_t s = 0; s < 6; ++s) EXPECT_EQ(static_cast<int>(s % 2), stripes.pieces(s * kPageBytes, 1).front().file);
}

TEST(Stripes, WeightsAreTheNearestSmallOnesToTheSpeeds) {
  const auto of = [](std::vector<double> speeds) { return store::Stripes::weights_of(speeds); };
  EXPECT_EQ((Weights{1}), of({3e9}));
  EXPECT_EQ((Weights{1, 1}), of({3e9, 2.95e9}));
  EXPECT_EQ((Weights{2, 1}), of({3e9, 1.5e9}));
  EXPECT_EQ((Weights{1, 4}), of({1e9, 4.1e9}));
  EXPECT_EQ((Weights{8, 3}), of({8e9, 3e9}));
  EXPECT_EQ((Weights{8, 1}), of({8e9, 1e6})) << "a path that was given is used, however slow";
}

}  // namespace
}  // namespace terrace
