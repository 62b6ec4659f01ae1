// Selects the cases of a test: some in continuous integration, all in the long form (TERRACE_LONG_TESTS=1).
//
// Owner:   the test. Threads: one.
#pragma once

#include <cmath>
#include <cstdlib>

namespace terrace::test {

inline bool long_form() { return std::getenv("TERRACE_LONG_TESTS") != nullptr; }

// Selects about one case in `n`, including the first. Multiples of the golden ratio are spread evenly for any lengths of nested
// loops: `OneIn chosen(4); for (…) for (…) if (chosen()) …`.
class OneIn {
 public:
  explicit OneIn(int n) : share_(long_form() ? 1.0 : 1.0 / n) {}
  bool operator()() {
    constexpr double kGolden = 0.61803398874989485;
    const double place = kGolden * cases_++;
    return place - std::floor(place) < share_;
  }

 private:
  double share_;
  int cases_ = 0;
};

}  // namespace terrace::test
