// Compares each rule of sampling with a plain computation of its definition, and drawn tokens with their probabilities.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/generate/sampling.h>

namespace terrace::lm {
namespace {

using Logits = std::vector<double>;
using Shares = std::map<std::int32_t, double>;  // tokens that may be drawn

Sampling plain() { return {.temperature = 1, .top_k = 0, .top_p = 1, .repetition_penalty = 1, .seed = 1}; }

Logits drawn(unsigned seed, std::size_t tokens) {
  std::mt19937 random(seed);
  Logits logits(tokens);
  for (auto& logit : logits) logit = static_cast<double>(random() % 1000) / 100 - 5;  // some are equal
  return logits;
}

Shares softmax(const Logits& logits, double temperature = 1) {
  Shares shares;
  double total = 0;
  for (const auto logit : logits) total += std::exp(logit / temperature);
  for (std::size_t i = 0; i < logits.size(); ++i)
    shares[static_cast<std::int32_t>(i)] = std::exp(logits[i] / temperature) / total;
  return shares;
}

Shares only(const Shares& shares, const std::vector<std::int32_t>& kept) {
  Shares out;
  double total = 0;
  for (const auto token : kept) total += shares.at(token);
  for (const auto token : kept) out[token] = shares.at(token) / total;
  return out;
}

// Tokens by falling share; of equal shares, the lowest token comes first.
std::vector<std::int32_t> in_order(Shares shares) {
  std::vector<std::int32_t> order;
  while (!shares.empty()) {
    auto best = shares.begin();
    for (auto it = shares.begin(); it != shares.end(); ++it)
      if (it->second > best->second) best = it;
    order.push_back(best->first);
    shares.erase(best);
  }
  return order;
}

void expect_shares(const Shares& expected, const Logits& logits, const Sampling& sampling,
                   const std::vector<std::int32_t>& seen = {}) {
  Shares got;
  for (const auto& [token, probability] : candidates(logits, sampling, seen)) got[token] = probability;
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [token, share] : expected) {
    ASSERT_TRUE(got.contains(token)) << token;
    EXPECT_NEAR(share, got[token], 1e-12) << token;
  }
}

TEST(Sampling, TemperatureScalesTheLogits) {
  for (unsigned seed = 1; seed <= 20; ++seed)
    for (const double temperature : {0.3, 1.0, 4.0}) {
      auto s = plain();
      s.temperature = temperature;
      const auto logits = drawn(seed, 50);
      expect_shares(softmax(logits, temperature), logits, s);
    }
}

TEST(Sampling, TopKKeepsTheLikeliestAndOfEqualOnesTheLowest) {
  for (unsigned seed = 1; seed <= 20; ++seed)
    for (const std::size_t k : {1, 7, 49, 50, 80}) {
      auto s = plain();
      s.top_k = static_cast<std::int64_t>(k);
      auto logits = drawn(seed, 50);
      logits[3] = logits[40] = logits[17];
      const auto all = softmax(logits);
      auto kept = in_order(all);
      kept.resize(std::min(k, kept.size()));
      expect_shares(only(all, kept), logits, s);
    }
}

TEST(Sampling, TopPKeepsTheFewestThatHaveTheShare) {
  for (unsigned seed = 1; seed <= 20; ++seed)
    for (const double p : {1e-9, 0.2, 0.5, 0.9, 0.999}) {
      auto s = plain();
      s.top_p = p;
      const auto logits = drawn(seed, 50);
      const auto all = softmax(logits);
      std::vector<std::int32_t> kept;
      double share = 0;
      for (const auto token : in_order(all)) {
        kept.push_back(token);
        if ((share += all.at(token)) >= p) break;
      }
      expect_shares(only(all, kept), logits, s);
    }
}

TEST(Sampling, RepetitionPenaltyMakesSeenTokensRarerOnce) {
  auto s = plain();
  s.repetition_penalty = 1.5;
  const Logits logits{2, -1, 0, 1, 3};
  expect_shares(softmax({2 / 1.5, -1 * 1.5, 0, 1, 3}), logits, s, {0, 1, 0, 2, 1, 77, -1});
  s.repetition_penalty = 1;
  expect_shares(softmax(logits), logits, s, {0, 1});
}

TEST(Sampling, TheRulesFollowOneAnother) {
  Sampling s{.temperature = 2, .top_k = 3, .top_p = 0.7, .repetition_penalty = 2, .seed = 1};
  const Logits logits{4, 2, 1, 3};
  const auto of_all = softmax({2, 2, 1, 3}, 2);  // token 0 was seen
  auto kept = in_order(of_all);
  ASSERT_EQ((std::vector<std::int32_t>{3, 0, 1, 2}), kept);
  kept.resize(3);
  const auto of_three = only(of_all, kept);
  ASSERT_LT(of_three.at(3) + 1e-9, 0.7);  // so that two are needed
  ASSERT_GT(of_three.at(3) + of_three.at(0), 0.7);
  expect_shares(only(of_three, {3, 0}), logits, s, {0});
}

TEST(Sampling, DrawsAreDeterministicAndHaveTheProbabilities) {
  const Logits logits{1, 0, 2, -1};
  constexpr int kDraws = 20'000;
  std::map<std::int32_t, int> count;
  for (std::uint64_t position = 0; position < kDraws; ++position) {
    const auto token = sample(logits, plain(), {}, position);
    if (position % 100 == 0) {
      EXPECT_EQ(token, sample(logits, plain(), {}, position));
    }
    ++count[token];
  }
  for (const auto& [token, share] : softmax(logits)) {
    const auto deviation = std::sqrt(share * (1 - share) / kDraws);
    EXPECT_NEAR(share, static_cast<double>(count[token]) / kDraws, 4 * deviation) << token;
  }
  auto other = plain();
  other.seed = 2;
  int different = 0;
  for (std::uint64_t position = 0; position < 100; ++position)
    different += sample(logits, plain(), {}, position) != sample(logits, other, {}, position) ? 1 : 0;
  EXPECT_GT(different, 20);
}

TEST(Sampling, TemperatureZeroTakesTheLikeliest) {
  auto s = plain();
  s.temperature = 0;
  EXPECT_EQ(1, sample({1, 3, 3, 2}, s, {}, 0));
  s.repetition_penalty = 2;
  EXPECT_EQ(2, sample({1, 3, 3, 2}, s, std::vector<std::int32_t>{1}, 0));
  s.temperature = 1e-300;
  EXPECT_EQ(1, sample({1, 4, 3, 2}, s, {}, 0));
}

TEST(Sampling, LogitsThatAreNoDistributionAreRefused) {
  constexpr auto kInfinite = std::numeric_limits<double>::infinity();
  for (const auto& logits : {Logits{1, std::nan("")}, Logits{kInfinite, 0}, Logits{-kInfinite, -kInfinite}})
    EXPECT_THROW(sample(logits, plain(), {}, 0), Error);
  EXPECT_EQ(1, sample({-kInfinite, 0}, plain(), {}, 0));
}

}  // namespace
}  // namespace terrace::lm
