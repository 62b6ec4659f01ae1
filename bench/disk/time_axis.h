// What a pass moved in each second of its time, with the latencies of the requests that ended then.
//
// A pass of more than kMostBuckets seconds gets wider buckets, of 2, 4, … seconds, so that memory and output stay small.
//
// Threads: any, one at a time. Errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/bench/disk/latency_histogram.h>

namespace terrace::bench {

class TimeAxis {
 public:
  static constexpr std::size_t kMostBuckets = 512;
  struct Bucket {
    std::uint64_t bytes = 0;
    LatencyHistogram latency;
  };
  // A request ended so long after the begin.
  void add(std::int64_t after_ns, std::uint64_t bytes, std::uint64_t latency_ns);
  void add(const TimeAxis& other);  // of another worker in the same pass
  [[nodiscard]] const std::vector<Bucket>& buckets() const { return buckets_; }
  [[nodiscard]] std::int64_t bucket_s() const { return bucket_s_; }
  [[nodiscard]] LatencyHistogram latencies() const;  // of all requests

 private:
  void widen();

  std::vector<Bucket> buckets_;
  std::int64_t bucket_s_ = 1;
};

}  // namespace terrace::bench
