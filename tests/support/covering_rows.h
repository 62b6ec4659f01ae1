// Covering arrays: a few rows of settings in which every combination of levels of any `strength` factors occurs.
//
// Most faults depend on two or three settings at once (Kuhn, Wallace, Gallo 2004), so such rows find what the full product
// would find, with a fraction of its runs. Rules say which rows are legal. Every row is legal, and every combination that a
// legal row can have occurs. impossible() lists the other combinations; a complete search proved that each is impossible.
//
// Greedy, as AETG (Cohen, Dalal, Fredman, Patton 1997): the next row is the candidate that covers most combinations. The same
// seed gives the same rows on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace terrace::test {

using Row = std::vector<int>;  // [factor] → level
inline constexpr int kUnset = -1;

// A rule decides by the levels of a few factors; it gets these levels in the order of `factors`.
struct CoveringRule {
  std::vector<std::size_t> factors;
  std::function<bool(std::span<const int> levels)> allows;
};

class CoveringRows {
 public:
  // levels[f]: how many values factor f has.
  CoveringRows(std::vector<int> levels, std::size_t strength, const std::vector<CoveringRule>& rules = {},
               std::uint64_t seed = 1)
      : levels_(std::move(levels)), groups_at_(levels_.size()), rules_at_(levels_.size()), random_(seed) {
    for (const auto& rule : rules) add(rule);
    choose({}, 0, strength);
    for (auto& group : groups_) find_impossible(group);
    while (const auto* group = least_covered()) rows_.push_back(next_row(*group));
  }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }
  // Combinations that no legal row has: their own factors have levels, all others are unset.
  [[nodiscard]] const std::vector<Row>& impossible() const { return impossible_; }

 private:
  static constexpr int kCandidates = 4;

  // Some factors, and one bit for every combination of their levels: whether it still has to be covered, or is allowed.
  struct Combinations {
    std::vector<std::size_t> factors;
    std::vector<bool> bits;
    std::size_t open = 0;  // number of set bits
  };

  [[nodiscard]] Combinations combinations_of(std::vector<std::size_t> factors) const {
    std::size_t all = 1;
    for (const auto f : factors) all *= static_cast<std::size_t>(levels_[f]);
    return {std::move(factors), std::vector<bool>(all, true), all};
  }
  void choose(std::vector<std::size_t> factors, std::size_t from, std::size_t strength) {
    if (factors.size() == strength) {
      for (const auto f : factors) groups_at_[f].push_back(groups_.size());
      groups_.push_back(combinations_of(std::move(factors)));
      return;
    }
    for (auto f = from; f < levels_.size(); ++f) {
      auto more = factors;
      more.push_back(f);
      choose(std::move(more), f + 1, strength);
    }
  }
  void add(const CoveringRule& rule) {
    auto table = combinations_of(rule.factors);
    for (std::size_t i = 0; i < table.bits.size(); ++i) {
      const auto row = row_of(table, i);
      std::vector<int> levels;
      for (const auto f : table.factors) levels.push_back(row[f]);
      table.bits[i] = rule.allows(levels);
    }
    for (const auto f : table.factors) rules_at_[f].push_back(rules_.size());
    rules_.push_back(std::move(table));
  }

  // Index of the row's combination; bits.size() if a factor is unset.
  [[nodiscard]] std::size_t at(const Combinations& c, const Row& row) const {
    std::size_t at = 0;
    for (const auto f : c.factors) {
      if (row[f] == kUnset) return c.bits.size();
      at = at * static_cast<std::size_t>(levels_[f]) + static_cast<std::size_t>(row[f]);
    }
    return at;
  }
  [[nodiscard]] Row row_of(const Combinations& c, std::size_t combination) const {
    Row row(levels_.size(), kUnset);
    for (auto i = c.factors.size(); i-- > 0;) {
      const auto levels = static_cast<std::size_t>(levels_[c.factors[i]]);
      row[c.factors[i]] = static_cast<int>(combination % levels);
      combination /= levels;
    }
    return row;
  }
  // No rule of this factor forbids the row; a rule with an unset factor cannot forbid it.
  [[nodiscard]] bool allowed(const Row& row, std::size_t factor) const {
    return std::ranges::all_of(rules_at_[factor], [&](std::size_t r) {
      const auto i = at(rules_[r], row);
      return i == rules_[r].bits.size() || rules_[r].bits[i];
    });
  }
  [[nodiscard]] bool allowed(const Row& row) const {
    for (std::size_t f = 0; f < row.size(); ++f)
      if (!allowed(row, f)) return false;
    return true;
  }
  // If a rule of this factor has a single unset factor, this one still has an allowed level.
  [[nodiscard]] bool leaves_choices(Row& row, std::size_t factor) const {
    for (const auto r : rules_at_[factor]) {
      const auto& factors = rules_[r].factors;
      const auto unset = [&](std::size_t f) { return row[f] == kUnset; };
      if (std::ranges::count_if(factors, unset) != 1) continue;
      const auto last = *std::ranges::find_if(factors, unset);
      bool any = false;
      for (row[last] = 0; !any && row[last] < levels_[last]; ++row[last]) any = allowed(row, last);
      row[last] = kUnset;
      if (!any) return false;
    }
    return true;
  }
  // [level]: the number of open combinations that the row would cover with this level of the factor.
  [[nodiscard]] std::vector<int> newly_covered(Row& row, std::size_t factor) const {
    std::vector<int> all(static_cast<std::size_t>(levels_[factor]));
    row[factor] = 0;
    for (const auto g : groups_at_[factor]) {
      const auto& group = groups_[g];
      const auto first = at(group, row);
      if (group.open == 0 || first == group.bits.size()) continue;
      std::size_t step = 1;  // distance to the next level's combination
      for (auto f = group.factors.rbegin(); *f != factor; ++f) step *= static_cast<std::size_t>(levels_[*f]);
      for (std::size_t level = 0; level < all.size(); ++level) all[level] += group.bits[first + level * step] ? 1 : 0;
    }
    row[factor] = kUnset;
    return all;
  }

  // Gives a level to every unset factor, in this order, so that the row can become legal; if `greedy`, the level that covers
  // most. The search is complete: it returns false only if there is no legal row.
  bool fill(Row& row, std::span<const std::size_t> order, bool greedy) {
    while (!order.empty() && row[order.front()] != kUnset) order = order.subspan(1);
    if (order.empty()) return true;
    const auto f = order.front();
    std::vector<int> levels;
    for (row[f] = 0; row[f] < levels_[f]; ++row[f])
      if (allowed(row, f) && leaves_choices(row, f)) levels.push_back(row[f]);
    if (greedy) {
      const auto covered = newly_covered(row, f);
      shuffle(levels);  // breaks ties randomly
      std::ranges::stable_sort(levels, std::greater(), [&](int level) { return covered[static_cast<std::size_t>(level)]; });
    }
    for (const int level : levels) {
      row[f] = level;
      if (fill(row, order.subspan(1), greedy)) return true;
    }
    row[f] = kUnset;
    return false;
  }
  // Puts factors that share rules with earlier ones next, so that a failing search ends early.
  [[nodiscard]] std::vector<std::size_t> along_rules(std::vector<std::size_t> from) const {
    const auto add_once = [&](std::size_t f) {
      if (std::ranges::find(from, f) == from.end()) from.push_back(f);
    };
    for (std::size_t i = 0; i < from.size(); ++i)
      for (const auto r : rules_at_[from[i]])
        for (const auto f : rules_[r].factors) add_once(f);
    for (std::size_t f = 0; f < levels_.size(); ++f) add_once(f);
    return from;
  }
  void find_impossible(Combinations& group) {
    const auto order = along_rules(group.factors);
    for (std::size_t i = 0; i < group.bits.size(); ++i) {
      const auto combination = row_of(group, i);
      auto row = combination;
      if (allowed(row) && fill(row, order, false)) continue;
      impossible_.push_back(combination);
      group.bits[i] = false;
      --group.open;
    }
  }

  [[nodiscard]] const Combinations* least_covered() const {
    const auto most = std::ranges::max_element(groups_, {}, &Combinations::open);
    return most == groups_.end() || most->open == 0 ? nullptr : &*most;
  }
  Row next_row(const Combinations& group) {
    Row best;
    int most = -1;
    for (int i = 0; i < kCandidates; ++i) {
      auto skip = random_() % group.open;  // an open combination
      std::size_t begin = 0;
      while (!group.bits[begin] || skip-- != 0) ++begin;
      auto row = row_of(group, begin);
      std::vector<std::size_t> order(levels_.size());
      for (std::size_t f = 0; f < order.size(); ++f) order[f] = f;
      shuffle(order);
      // Factors with rules first: a search that meets a rule late would try all levels of the factors in between.
      std::ranges::stable_partition(order, [&](std::size_t f) { return !rules_at_[f].empty(); });
      fill(row, order, true);
      int covers = 0;
      for (const auto& g : groups_) covers += g.bits[at(g, row)] ? 1 : 0;
      if (covers > most) most = covers, best = std::move(row);
    }
    for (auto& g : groups_) {
      auto bit = g.bits[at(g, best)];
      g.open -= bit ? 1 : 0;
      bit = false;
    }
    return best;
  }
  template <typename T>
  void shuffle(std::vector<T>& all) {  // unlike std::shuffle, gives the same result with every library
    for (auto i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random_() % i]);
  }

  std::vector<int> levels_;
  std::vector<Combinations> groups_, rules_;
  std::vector<std::vector<std::size_t>> groups_at_, rules_at_;  // [factor]
  std::vector<Row> rows_, impossible_;
  std::mt19937_64 random_;
};

}  // namespace terrace::test
