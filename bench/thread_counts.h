// How many threads a bench runs with: the requested number, or else one and then all.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/machine/machine.h>

namespace terrace::bench {

inline std::vector<int> thread_counts(std::int64_t asked) {
  if (asked > 0) return {static_cast<int>(asked)};
  const int cores = read_topology().cores;
  return cores > 1 ? std::vector{1, cores} : std::vector{1};
}

}  // namespace terrace::bench
