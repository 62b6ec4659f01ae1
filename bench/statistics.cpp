#include <terrace/bench/statistics.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace terrace::bench {

double median(std::vector<double> values) {
  if (values.empty()) throw std::logic_error("the median of no values");
  std::ranges::sort(values);
  const auto middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double spread(const std::vector<double>& values) {
  const double middle = median(values);
  const auto [least, greatest] = std::ranges::minmax(values);
  return middle == 0 ? 0 : (greatest - least) / middle;
}

Percentiles::Percentiles(std::vector<std::uint64_t> values) : sorted_(std::move(values)) {
  if (sorted_.empty()) throw std::logic_error("percentiles of no values");
  std::ranges::sort(sorted_);
}

std::uint64_t Percentiles::at(double fraction) const {
  // Subtracts a little: if 0.99 × 100 comes out slightly above 99 in binary, it must not become rank 100.
  const double rank = std::ceil(fraction * static_cast<double>(sorted_.size()) - 1e-6);
  return sorted_[static_cast<std::size_t>(std::clamp(rank, 1.0, static_cast<double>(sorted_.size()))) - 1];
}

}  // namespace terrace::bench
