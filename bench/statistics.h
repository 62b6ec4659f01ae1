// Medians, spreads and percentiles of measured values.
//
// Threads: any. Errors: std::logic_error if there are no values.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::bench {

// For an even number of values, the mean of the two in the middle.
double median(std::vector<double> values);
// (greatest − least) ÷ median: how far apart the runs are. 0 for a single value.
double spread(const std::vector<double>& values);
// Nearest rank: the least value that is at least as large as `fraction` of all values. Sorts the given values.
class Percentiles {
 public:
  explicit Percentiles(std::vector<std::uint64_t> values);
  [[nodiscard]] std::uint64_t at(double fraction) const;  // fraction in (0, 1]

 private:
  std::vector<std::uint64_t> sorted_;
};

}  // namespace terrace::bench
