// How far apart two words are: the number of inserted, deleted or changed letters and of swapped neighbours (optimal string
// alignment). For messages that suggest what a misspelt word may have meant.
//
// Pure. Threads: any. Errors: none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

namespace terrace::base {

inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({row[j - 1] + 1, last[j] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = last;
    last = row;
  }
  return last[b.size()];
}

}  // namespace terrace::base
