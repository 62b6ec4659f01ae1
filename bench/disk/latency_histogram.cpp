#include <terrace/bench/disk/latency_histogram.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

namespace terrace::bench {
namespace {

constexpr int kSteps = 128, kStepBits = 8;  // counters for each power of two; bits of a number in [kSteps, 2 · kSteps)
constexpr int kMostBits = 44;               // longer than 4.8 hours counts as that
constexpr std::size_t kCounters = kSteps * (kMostBits - kStepBits + 2);

int shift_of(std::uint64_t ns) { return std::max(static_cast<int>(std::bit_width(ns)) - kStepBits, 0); }

std::size_t counter_of(std::uint64_t ns) {
  ns = std::min(ns, (std::uint64_t{1} << kMostBits) - 1);
  const int shift = shift_of(ns);
  return static_cast<std::size_t>(shift) * kSteps + static_cast<std::size_t>(ns >> shift);
}

// The middle of the latencies that a counter counts.
std::uint64_t latency_of(std::size_t counter) {
  const auto shift = counter < 2 * kSteps ? 0 : counter / kSteps - 1;
  const auto least = static_cast<std::uint64_t>(counter - shift * kSteps) << shift;
  return least + (std::uint64_t{1} << shift) / 2;
}

}  // namespace

void LatencyHistogram::add(std::uint64_t ns) {
  if (counts_.empty()) counts_.resize(kCounters);
  ++counts_[counter_of(ns)];
  ++count_;
  most_ns_ = std::max(most_ns_, ns);
}

void LatencyHistogram::add(const LatencyHistogram& other) {
  if (other.counts_.empty()) return;
  if (counts_.empty()) counts_.resize(kCounters);
  for (std::size_t i = 0; i < kCounters; ++i) counts_[i] += other.counts_[i];
  count_ += other.count_;
  most_ns_ = std::max(most_ns_, other.most_ns_);
}

std::uint64_t LatencyHistogram::at(double fraction) const {
  if (count_ == 0) throw std::logic_error("percentiles of no latencies");
  // A little less: if 0.99 × 100 comes out slightly above 99 in binary, it must not become rank 100.
  const auto rank = static_cast<std::uint64_t>(
      std::clamp(std::ceil(fraction * static_cast<double>(count_) - 1e-6), 1.0, static_cast<double>(count_)));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < kCounters; ++i)
    if ((seen += counts_[i]) >= rank) return std::min(latency_of(i), most_ns_);
  return most_ns_;
}

}  // namespace terrace::bench
