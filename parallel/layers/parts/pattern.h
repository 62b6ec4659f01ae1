// Patterns that are repeated over the blocks of a model.
//
// Threads: pure.
#pragma once

#include <cstddef>
#include <vector>

namespace terrace::layers {

// The shortest prefix that gives the whole list when it is repeated.
template <class T>
std::vector<T> shortest_pattern(std::vector<T> all) {
  for (std::size_t length = 1; length < all.size(); ++length) {
    bool repeats = true;
    for (std::size_t b = length; b < all.size(); ++b) repeats = repeats && all[b] == all[b - length];
    if (!repeats) continue;
    all.resize(length);
    break;
  }
  return all;
}

}  // namespace terrace::layers
