// Covering arrays: few rows of settings in which every combination of the levels of any `strength` factors occurs.
//
// Most faults depend on two or three settings at once (Kuhn, Wallace, Gallo 2004), so such rows find what the full product
// would, at a fraction of its runs. Greedy and deterministic.
#pragma once

#include <cstddef>
#include <vector>

namespace terrace::test {

using Row = std::vector<int>;

class CoveringRows {
 public:
  // levels[f]: how many values factor f has.
  CoveringRows(std::vector<int> levels, std::size_t strength) : levels_(std::move(levels)) {
    choose({}, 0, strength);
    for (std::size_t first; (first = open_group()) != groups_.size();) rows_.push_back(next_row(first));
  }
  [[nodiscard]] const std::vector<Row>& rows() const { return rows_; }

 private:
  static constexpr int kUnset = -1;

  // Some factors, and which combinations of their levels no row has yet.
  struct Group {
    std::vector<std::size_t> factors;
    std::vector<bool> open;
  };

  void choose(std::vector<std::size_t> factors, std::size_t from, std::size_t strength) {
    if (factors.size() == strength) {
      std::size_t combinations = 1;
      for (const auto f : factors) combinations *= static_cast<std::size_t>(levels_[f]);
      groups_.push_back({std::move(factors), std::vector<bool>(combinations, true)});
      return;
    }
    for (auto f = from; f < levels_.size(); ++f) {
      auto more = factors;
      more.push_back(f);
      choose(std::move(more), f + 1, strength);
    }
  }

  [[nodiscard]] std::size_t open_group() const {
    std::size_t g = 0;
    while (g < groups_.size() && first_open(groups_[g]) == groups_[g].open.size()) ++g;
    return g;
  }
  static std::size_t first_open(const Group& group) {
    std::size_t i = 0;
    while (i < group.open.size() && !group.open[i]) ++i;
    return i;
  }

  // Which combination of the group's levels the row has; open.size() while a factor is not set.
  [[nodiscard]] std::size_t combination(const Group& group, const Row& row) const {
    std::size_t at = 0;
    for (const auto f : group.factors) {
      if (row[f] == kUnset) return group.open.size();
      at = at * static_cast<std::size_t>(levels_[f]) + static_cast<std::size_t>(row[f]);
    }
    return at;
  }
  [[nodiscard]] int newly_covered(const Row& row) const {
    int n = 0;
    for (const auto& group : groups_)
      if (const auto at = combination(group, row); at < group.open.size() && group.open[at]) ++n;
    return n;
  }

  // Starts with a combination that is open, then gives each factor left the level that closes most.
  Row next_row(std::size_t first) {
    Row row(levels_.size(), kUnset);
    const auto& start = groups_[first];
    for (auto at = first_open(start), i = start.factors.size(); i-- > 0;) {
      const auto levels = static_cast<std::size_t>(levels_[start.factors[i]]);
      row[start.factors[i]] = static_cast<int>(at % levels);
      at /= levels;
    }
    for (std::size_t f = 0; f < row.size(); ++f) {
      if (row[f] != kUnset) continue;
      int best = 0, most = -1;
      for (int level = 0; level < levels_[f]; ++level) {
        // Ties go to another level each time, so that a factor that no longer matters still varies.
        row[f] = (level + static_cast<int>(rows_.size())) % levels_[f];
        if (const int n = newly_covered(row); n > most) most = n, best = row[f];
      }
      row[f] = best;
    }
    for (auto& group : groups_) group.open[combination(group, row)] = false;
    return row;
  }

  std::vector<int> levels_;
  std::vector<Group> groups_;
  std::vector<Row> rows_;
};

}  // namespace terrace::test
