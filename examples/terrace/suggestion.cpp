// The known word that a misspelt one may have meant.
#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <terrace/examples/terrace/options.h>

namespace terrace::cli {

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  // Edit distance with a swap of neighbours as one edit (optimal string alignment).
  const auto distance = [](std::string_view a, std::string_view b) {
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
  };
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;  // farther is another word
  for (const auto candidate : candidates) {
    const auto d = distance(word, candidate);
    const bool shares = d < std::max(word.size(), candidate.size());  // something in common at all
    if (shares && d < best_distance) best = candidate, best_distance = d;
  }
  return std::string(best);
}

std::string suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix) {
  const auto near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, near);
}

}  // namespace terrace::cli
