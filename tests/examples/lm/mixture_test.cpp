// Which source each sequence comes from: shares are exact at every place, and places may be read in any order.
#include <numeric>
#include <random>

#include <gmock/gmock.h>

#include <terrace/examples/lm/data/mixture.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::lm {
namespace {

using Weights = std::vector<std::uint64_t>;

std::vector<Mixture::Place> first_of(const Weights& weights, std::uint64_t seed, std::uint64_t n) {
  Mixture mixture(weights, seed);
  std::vector<Mixture::Place> places;
  for (std::uint64_t i = 0; i < n; ++i) places.push_back(mixture.at(i));
  return places;
}

// In whole numbers: of n sequences, a source of weight w in a sum of W has had c, and |c · W − n · w| < W.
void expect_shares(const Weights& weights, std::uint64_t seed, std::uint64_t n) {
  const auto all = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  std::vector<std::int64_t> taken(weights.size());
  const auto places = first_of(weights, seed, n);
  for (std::uint64_t i = 0; i < n; ++i) {
    const auto [source, sequence] = places[i];
    ASSERT_EQ(static_cast<std::uint64_t>(taken[source]++), sequence) << "a source's sequences come in turn, place " << i;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const auto off = taken[s] * all - static_cast<std::int64_t>((i + 1) * weights[s]);
      ASSERT_LT(std::abs(off), all) << "source " << s << " of " << testing::PrintToString(weights) << " after " << i + 1
                                    << " sequences, seed " << seed;
    }
  }
}

TEST(Mixture, EachSourceHasItsShareWithinOneAtEveryPlace) {
  expect_shares({1}, 1, 100);
  expect_shares({1, 1}, 1, 1000);
  expect_shares({7, 3}, 1, 1000);
  expect_shares({1, 999'999}, 1, 5000);
  expect_shares({1, 1, 1, 1, 1, 1, 1}, 2, 1000);
  const auto seed = std::random_device{}();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    Weights weights(1 + random() % 9);
    for (auto& w : weights) w = 1 + random() % (std::uint64_t{1} << random() % 14);
    expect_shares(weights, random(), 3000);
    ASSERT_FALSE(testing::Test::HasFailure()) << "drawn from the seed " << seed;
  }
}

TEST(Mixture, IsAFunctionOfSeedAndPlaceAlone) {
  const Weights weights{5, 2, 2, 1};
  const auto places = first_of(weights, 3, 500);
  EXPECT_EQ(places, first_of(weights, 3, 500));
  EXPECT_NE(places, first_of(weights, 4, 500)) << "where windows end together the seed decides";
  Mixture mixture(weights, 3);
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    const auto i = random() % places.size();
    ASSERT_EQ(places[i], mixture.at(i)) << "place " << i;
  }
  // A place far on, in a later period.
  const std::uint64_t far = 10'000'000'000'003;
  const auto place = mixture.at(far);
  EXPECT_EQ(place, Mixture(weights, 3).at(far));
  EXPECT_EQ(mixture.taken(far + 1)[place.source], place.sequence + 1);
}

TEST(Mixture, CountsWhatEachSourceHasHad) {
  const Weights weights{3, 4, 6};
  const auto places = first_of(weights, 9, 200);
  Mixture mixture(weights, 9);
  for (const std::uint64_t n : {0, 1, 12, 13, 14, 200, 7}) {
    Weights expected(3);
    for (std::uint64_t i = 0; i < n; ++i) ++expected[places[i].source];
    EXPECT_EQ(expected, mixture.taken(n)) << n;
  }
}

TEST(Mixture, WeightsAreExact) {
  EXPECT_EQ((Weights{7, 3}), whole_weights({"0.7", "0.3"}));
  EXPECT_EQ((Weights{7, 3}), whole_weights({"70", "30.00"}));
  EXPECT_EQ((Weights{1, 3}), whole_weights({"1000000000000", "3e12"}));
  EXPECT_EQ((Weights{1, 999'999}), whole_weights({"1e-6", "0.999999"}));
  EXPECT_EQ((Weights{1}), whole_weights({".25"}));
  for (const auto* const word : {"0.7", "-1", "nan", "inf", "1e999", "0", "5."}) EXPECT_TRUE(is_number(word)) << word;
  for (const auto* const word : {"", "a.bin", "7.bin", "./7", "0x1", "1,5", "-"}) EXPECT_FALSE(is_number(word)) << word;
}

TEST(Mixture, OtherWeightsAreRefused) {
  for (const auto& [wrong, why] : {std::pair<std::string, std::string>{"0", "positive"},
                                   {"-1", "positive"},
                                   {"-0.0", "positive"},
                                   {"nan", "positive"},
                                   {"inf", "positive"},
                                   {"0e5", "positive"},
                                   {"x", "no number"},
                                   {"", "no number"},
                                   {"0.3333333", "fewer digits"},
                                   {"1e-300", "fewer digits"},
                                   {"1e99999999999", "fewer digits"},
                                   {"123456789012345678901234567890", "fewer digits"}})
    EXPECT_THAT(test::refusal_of([&] { whole_weights({"1", wrong}); }), testing::HasSubstr(why)) << wrong;
}

}  // namespace
}  // namespace terrace::lm
