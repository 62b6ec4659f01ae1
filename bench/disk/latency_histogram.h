// How often each latency occurred, in a fixed amount of memory whatever the number of requests.
//
// Latencies from 128 ns on share a counter with those up to 1/128 larger, as in fio's percentiles, so a percentile is off by at
// most 0.4 %. The largest latency is exact.
//
// Threads: any, one at a time. Errors: std::logic_error for a percentile of nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::bench {

class LatencyHistogram {
 public:
  void add(std::uint64_t ns);
  void add(const LatencyHistogram& other);
  [[nodiscard]] std::uint64_t count() const { return count_; }
  [[nodiscard]] std::uint64_t most_ns() const { return most_ns_; }
  // Nearest rank: at least `fraction` of all latencies are not larger. fraction in (0, 1].
  [[nodiscard]] std::uint64_t at(double fraction) const;

 private:
  std::vector<std::uint32_t> counts_;  // empty until the first latency
  std::uint64_t count_ = 0, most_ns_ = 0;
};

}  // namespace terrace::bench
