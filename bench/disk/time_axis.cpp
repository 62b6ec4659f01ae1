#include <terrace/bench/disk/time_axis.h>

#include <algorithm>
#include <utility>

namespace terrace::bench {

void TimeAxis::add(std::int64_t after_ns, std::uint64_t bytes, std::uint64_t latency_ns) {
  const auto second = std::max<std::int64_t>(after_ns, 0) / 1'000'000'000;
  while (second / bucket_s_ >= static_cast<std::int64_t>(kMostBuckets)) widen();
  const auto at = static_cast<std::size_t>(second / bucket_s_);
  if (at >= buckets_.size()) buckets_.resize(at + 1);
  buckets_[at].bytes += bytes;
  buckets_[at].latency.add(latency_ns);
}

void TimeAxis::add(const TimeAxis& other) {
  auto theirs = other;
  while (bucket_s_ < theirs.bucket_s_) widen();
  while (theirs.bucket_s_ < bucket_s_) theirs.widen();
  buckets_.resize(std::max(buckets_.size(), theirs.buckets_.size()));
  for (std::size_t i = 0; i < theirs.buckets_.size(); ++i) {
    buckets_[i].bytes += theirs.buckets_[i].bytes;
    buckets_[i].latency.add(theirs.buckets_[i].latency);
  }
}

LatencyHistogram TimeAxis::latencies() const {
  LatencyHistogram all;
  for (const auto& bucket : buckets_) all.add(bucket.latency);
  return all;
}

void TimeAxis::widen() {
  std::vector<Bucket> wider((buckets_.size() + 1) / 2);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    wider[i / 2].bytes += buckets_[i].bytes;
    wider[i / 2].latency.add(buckets_[i].latency);
  }
  buckets_ = std::move(wider);
  bucket_s_ *= 2;
}

}  // namespace terrace::bench
