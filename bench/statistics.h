// Medians, spreads and percentiles of what was measured.
//
// Threads: any. Errors: std::logic_error where there is nothing to sum up.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::bench {

// Of an even number of values the mean of the two in the middle.
double median(std::vector<double> values);
// (greatest − least) ÷ median: how far apart the runs lie. 0 of one value.
double spread(const std::vector<double>& values);
// Nearest rank: the least of the values that at least `fraction` of all do not exceed. Sorts what it is given.
class Percentiles {
 public:
  explicit Percentiles(std::vector<std::uint64_t> values);
  [[nodiscard]] std::uint64_t at(double fraction) const;  // fraction in (0, 1]

 private:
  std::vector<std::uint64_t> sorted_;
};

}  // namespace terrace::bench
