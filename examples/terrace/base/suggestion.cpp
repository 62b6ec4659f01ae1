// The known word that a misspelt one may have meant.
#include <algorithm>

#include <fmt/format.h>

#include <terrace/core/base/edit_distance.h>
#include <terrace/examples/terrace/config/options.h>

namespace terrace::cli {

std::string nearest(std::string_view word, std::span<const std::string_view> candidates) {
  std::string_view best;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;  // at a larger distance it is another word
  for (const auto candidate : candidates) {
    const auto d = base::edit_distance(word, candidate);
    const bool shares = d < std::max(word.size(), candidate.size());  // they have at least one character in common
    if (shares && d < best_distance) best = candidate, best_distance = d;
  }
  return std::string(best);
}

std::string suggestion(std::string_view word, std::span<const std::string_view> candidates, std::string_view prefix) {
  const auto near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean {}{}?", prefix, near);
}

}  // namespace terrace::cli
