// Which ways to divide a run over its ranks a search compares.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include <terrace/parallel/plan/search/candidates.h>

namespace terrace {
namespace {

// Six heads, six layers of which two are blocks of two, and 32 positions.
SearchSpace space_of(std::uint32_t ranks, std::uint32_t ranks_per_node, std::int64_t sequences) {
  return {.ranks = ranks,
          .ranks_per_node = ranks_per_node,
          .sequences = sequences,
          .micro_batch = {2, 32},
          .model = {.layers = 6, .heads = 6, .ffn = 192, .seq_len = 32, .kv_heads = 6, .hidden = 48},
          .given = {.degrees = {.zigzag = true}}};
}

std::string text_of(const Candidate& c) {
  const auto& d = c.degrees;
  std::string text = fmt::format("dp {} pp {} tp {}", d.dp, d.pp, d.tp);
  if (c.place.sequence) text += " rows";
  if (d.tensor_mode != TensorMode::line)
    text += fmt::format(" mode {} depth {}", static_cast<int>(d.tensor_mode), d.tensor_depth);
  if (d.cp > 1) text += fmt::format(" cp {} ring {}", d.cp, c.place.ring);
  if (d.ep > 1) text += fmt::format(" ep {}", d.ep);
  return text;
}

// dp, pp, tp, shared rows, context ranks and their ring, zero
using Numbers = std::tuple<int, int, int, bool, int, std::uint32_t, std::uint32_t>;

// The expected values are counted by hand: six heads, twelve ranks on nodes of six, 2 · 2 + 2 layers, 24 sequences in
// micro-batches of two, and 32 positions, which 3 context ranks do not divide.
TEST(Candidates, AreEveryLegalProductOnce) {
  std::set<Numbers> expected;
  using Rings = std::vector<std::uint32_t>;
  for (const auto& [cp, rings] : {std::pair{1, Rings{1}}, {2, Rings{1, 2}}})
    for (const auto& [tp, rows] : {std::pair{1, false}, {2, true}, {3, false}, {6, false}})  // 64 tokens are not divided by 3
      for (const int pp : {1, 2, 3, 4, 6}) {
        if (6 / tp % cp != 0 || 12 / tp / cp % pp != 0) continue;
        const int dp = 12 / tp / cp / pp;
        if (12 % dp != 0) continue;
        for (const auto ring : rings) {
          const bool divides = ring == static_cast<std::uint32_t>(cp) || 6 / tp % cp == 0;
          for (std::uint32_t zero = 0; divides && zero <= (dp * cp > 1 ? 3U : 0U); ++zero)
            expected.emplace(dp, pp, tp, rows, cp, ring, zero);
        }
      }
  const auto space = space_of(12, 6, 24);
  std::set<Numbers> tried;
  for (const auto& c : candidates(space)) {
    const auto& d = c.degrees;
    EXPECT_TRUE(tried.emplace(d.dp, d.pp, d.tp, c.place.sequence, d.cp, c.place.ring, c.zero).second) << text_of(c) << " twice";
    EXPECT_EQ(12U, c.place.mesh.size()) << text_of(c);
    EXPECT_EQ(24, d.dp * 2 * c.micro_batches) << text_of(c);
    EXPECT_TRUE(problems(d, space.model, 12).empty()) << text_of(c);
  }
  EXPECT_EQ(expected, tried);
}

// Eight tensor ranks can be a row, two squares or a cube, four a row or a square, if the micro-batch has enough sequences for
// the rows.
TEST(Candidates, HaveTensorRanksInEveryGrid) {
  auto space = space_of(8, 8, 16);
  space.model.heads = space.model.kv_heads = 8;
  space.model.hidden = 64;
  space.model.ffn = 256;
  space.micro_batch.batch = 4;
  std::set<std::string> tried;
  for (const auto& c : candidates(space))
    if (c.degrees.tp >= 4 && c.degrees.pp == 1 && c.degrees.cp == 1 && c.zero == 0) tried.insert(text_of(c));
  EXPECT_EQ(
      (std::set<std::string>{"dp 1 pp 1 tp 8 rows", "dp 1 pp 1 tp 8 rows mode 2 depth 2", "dp 1 pp 1 tp 8 rows mode 3 depth 1",
                             "dp 2 pp 1 tp 4 rows", "dp 2 pp 1 tp 4 rows mode 1 depth 1"}),
      tried);
  space.micro_batch.batch = 2;
  for (const auto& c : candidates(space)) EXPECT_EQ(1, c.degrees.tensor_depth) << text_of(c);
}

// Eight ranks of one group exchange heads, go round one ring, or round rings of two or four.
TEST(Candidates, HaveContextRanksInEveryRing) {
  auto space = space_of(8, 8, 2);
  space.model.heads = space.model.kv_heads = space.model.hidden = 64;
  std::set<std::uint32_t> rings;
  for (const auto& c : candidates(space))
    if (c.degrees.cp == 8) rings.insert(c.place.ring);
  EXPECT_EQ((std::set<std::uint32_t>{1, 2, 4, 8}), rings);
}

// A given number of context ranks stays, and so does their ring.
TEST(Candidates, KeepGivenContextRanks) {
  auto space = space_of(8, 8, 16);
  space.given.degrees.cp = 2;
  space.given.place.ring = 2;
  const auto all = candidates(space);
  EXPECT_FALSE(all.empty());
  for (const auto& c : all) {
    EXPECT_EQ(2, c.degrees.cp) << text_of(c);
    EXPECT_EQ(2U, c.place.ring) << text_of(c);
    EXPECT_EQ(8U, c.place.mesh.size()) << text_of(c);
  }
}

// The number of expert ranks divides both the experts and the ranks, which may be on several nodes; a given degree stays.
TEST(Candidates, HaveExpertRanks) {
  auto space = space_of(8, 2, 32);
  space.model.experts = 4;
  std::set<std::string> tried;
  for (const auto& c : candidates(space)) {
    EXPECT_EQ(32, c.degrees.dp * c.degrees.ep * 2 * c.micro_batches) << text_of(c);
    if (c.degrees.tp == 1 && c.degrees.cp == 1 && c.degrees.pp <= 2) tried.insert(text_of(c));
  }
  EXPECT_EQ((std::set<std::string>{"dp 8 pp 1 tp 1", "dp 4 pp 2 tp 1", "dp 4 pp 1 tp 1 ep 2", "dp 2 pp 2 tp 1 ep 2",
                                   "dp 2 pp 1 tp 1 ep 4", "dp 1 pp 2 tp 1 ep 4"}),
            tried);
  space.given.degrees.ep = 2;
  for (const auto& c : candidates(space)) EXPECT_EQ(2, c.degrees.ep) << text_of(c);
}

// What the table of features excludes is no candidate: skip connections do not work with tensor ranks.
TEST(Candidates, AreLegalForTheFeaturesOfTheRun) {
  auto space = space_of(4, 4, 16);
  space.given.degrees.with = {Feature::skips};
  const auto all = candidates(space);
  EXPECT_TRUE(std::ranges::any_of(all, [](const auto& c) { return c.degrees.cp > 1; }));
  for (const auto& c : all) EXPECT_EQ(1, c.degrees.tp) << text_of(c);
}

}  // namespace
}  // namespace terrace
