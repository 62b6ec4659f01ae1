// Covering rows keep their promise: compared with an enumeration of all rows, for randomly drawn rules.
#include <terrace/tests/support/covering_rows.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

namespace terrace::test {
namespace {

// The combinations of the levels of `strength` factors that this row has.
std::set<Row> combinations_in(const Row& row, std::size_t strength) {
  std::set<Row> all;
  for (std::uint32_t chosen = 0; chosen < 1U << row.size(); ++chosen) {
    Row part(row.size(), kUnset);
    std::size_t count = 0;
    for (std::size_t f = 0; f < row.size(); ++f)
      if ((chosen >> f & 1U) != 0) part[f] = row[f], ++count;
    if (count == strength) all.insert(part);
  }
  return all;
}
std::set<Row> combinations_in(const std::vector<Row>& rows, std::size_t strength) {
  std::set<Row> all;
  for (const auto& row : rows) all.merge(combinations_in(row, strength));
  return all;
}
std::vector<Row> all_rows(const std::vector<int>& levels) {
  std::vector<Row> all{{}};
  for (const int count : levels) {
    std::vector<Row> longer;
    for (const auto& row : all)
      for (int level = 0; level < count; ++level) {
        longer.push_back(row);
        longer.back().push_back(level);
      }
    all = std::move(longer);
  }
  return all;
}
bool is_legal(const Row& row, const std::vector<CoveringRule>& rules) {
  return std::ranges::all_of(rules, [&](const CoveringRule& rule) {
    std::vector<int> levels;
    for (const auto f : rule.factors) levels.push_back(row[f]);
    return rule.allows(levels);
  });
}

TEST(CoveringRows, EveryLegalCombinationIsInALegalRowAndTheOthersAreListed) {
  std::size_t listed = 0, without_rows = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    std::vector<int> levels(4 + random() % 3);
    for (auto& count : levels) count = 1 + static_cast<int>(random() % 4);
    std::vector<CoveringRule> rules;
    for (auto left = random() % 5; left > 0; --left) {
      std::vector<std::size_t> factors;
      for (std::size_t f = 0; f < levels.size(); ++f)
        if (random() % 2 == 0 && factors.size() < 3) factors.push_back(f);
      const auto key = random();  // decides what the rule allows: three combinations of four, or in some draws one
      rules.push_back({factors, [key, few = seed % 10 == 0](std::span<const int> of) {
                         std::uint64_t mixed = key;
                         for (const int level : of) mixed = (mixed + static_cast<std::uint64_t>(level)) * 0x9E3779B97F4A7C15;
                         return (mixed >> 62 != 0) != few;
                       }});
    }
    for (const std::size_t strength : {2U, 3U}) {
      const CoveringRows covering(levels, strength, rules, seed);
      std::vector<Row> legal;
      for (auto& row : all_rows(levels))
        if (is_legal(row, rules)) legal.push_back(std::move(row));
      for (const auto& row : covering.rows()) EXPECT_TRUE(is_legal(row, rules));
      const auto possible = combinations_in(legal, strength);
      EXPECT_EQ(combinations_in(covering.rows(), strength), possible);

      std::set<Row> impossible = combinations_in(all_rows(levels), strength);
      for (const auto& combination : possible) impossible.erase(combination);
      EXPECT_EQ(std::set(covering.impossible().begin(), covering.impossible().end()), impossible);
      EXPECT_EQ(covering.impossible().size(), impossible.size()) << "each is listed once";
      listed += impossible.size();
      without_rows += legal.empty() ? 1 : 0;
    }
  }
  EXPECT_GT(listed, 100U);
  EXPECT_GT(without_rows, 0U);
}

// The lower bound: the number of level combinations of the two largest factors.
TEST(CoveringRows, TheirNumberIsCloseToTheBound) {
  const auto rows = [](const std::vector<int>& levels, std::size_t strength, const std::vector<CoveringRule>& rules) {
    return CoveringRows(levels, strength, rules).rows().size();
  };
  EXPECT_EQ(rows({5, 4}, 2, {}), 20U);
  EXPECT_LE(rows({2, 2, 2, 2, 2, 2, 2, 2, 2, 2}, 2, {}), 10U);                                  // at least 6
  EXPECT_LE(rows({11, 9, 8, 6, 4, 4, 4, 4, 4, 4, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2}, 2, {}), 115U);  // at least 99
  EXPECT_LE(rows({12, 5, 4, 2, 4, 4, 4, 2}, 3, {}), 315U);                                      // at least 240
  const CoveringRule apart{{0, 1}, [](std::span<const int> of) { return of[0] % 2 == of[1] % 2; }};
  EXPECT_LE(rows({10, 8, 4, 4, 4, 2, 2, 2}, 2, {apart}), 48U);  // at least 40
}

TEST(CoveringRows, AreThoseOfTheirSeed) {
  const std::vector<int> levels{5, 4, 3, 3, 2};
  EXPECT_EQ(CoveringRows(levels, 2, {}, 7).rows(), CoveringRows(levels, 2, {}, 7).rows());
  EXPECT_NE(CoveringRows(levels, 2, {}, 7).rows(), CoveringRows(levels, 2, {}, 8).rows());
}

// The search follows chains of rules, also circular ones: no level of the third factor is compatible with this pair.
TEST(CoveringRows, APairThatOnlyAThirdFactorForbidsIsImpossible) {
  const auto equal = [](std::span<const int> of) { return of[0] == of[1]; };
  const CoveringRows covering({2, 2, 2}, 2, {{{0, 2}, equal}, {{1, 2}, equal}});
  EXPECT_EQ(covering.rows().size(), 2U);
  EXPECT_TRUE(std::ranges::find(covering.impossible(), Row{0, 1, kUnset}) != covering.impossible().end());
}

}  // namespace
}  // namespace terrace::test
