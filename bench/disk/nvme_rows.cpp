#include <terrace/bench/disk/nvme_rows.h>

#include <algorithm>

#include <terrace/bench/statistics.h>
#include <terrace/core/base/units.h>

namespace terrace::bench {
namespace {

double microseconds_of(std::uint64_t ns) { return static_cast<double>(ns) * 1e-3; }

// The seconds of one run. The last one may be shorter: a run ends when its last request does.
void add_seconds(Result& axis, const DiskRun& run, std::size_t number) {
  const auto width_s = static_cast<double>(run.axis.bucket_s());
  double at_s = 0;
  for (const auto& bucket : run.axis.buckets()) {
    Result second{
        {"run", number}, {"at_s", at_s}, {"seconds", std::clamp(run.seconds - at_s, 0.0, width_s)}, {"bytes", bucket.bytes}};
    const bool any = bucket.latency.count() > 0;
    second["p50_us"] = any ? Result(microseconds_of(bucket.latency.at(0.5))) : Result();
    second["p99_us"] = any ? Result(microseconds_of(bucket.latency.at(0.99))) : Result();
    second["max_us"] = any ? Result(microseconds_of(bucket.latency.most_ns())) : Result();
    axis.push_back(std::move(second));
    at_s += width_s;
  }
}

}  // namespace

void NvmeFigures::add(const DiskRun& run) {
  const auto bytes = static_cast<double>(run.bytes);
  gb_per_s_.push_back(bytes / run.seconds * 1e-9);
  iops_.push_back(static_cast<double>(run.blocks) / run.seconds);
  cpu_s_per_gib_.push_back(run.cpu_s / (bytes / static_cast<double>(kGiB)));
  const auto latency = run.axis.latencies();
  p50_us_.push_back(microseconds_of(latency.at(0.5)));
  p99_us_.push_back(microseconds_of(latency.at(0.99)));
  p999_us_.push_back(microseconds_of(latency.at(0.999)));
  add_seconds(axis_, run, gb_per_s_.size());
}

Result NvmeFigures::row(const NvmeTest& test, bool own_cpu) const {
  Result row{{"op", test.op}};
  if (!test.path.empty()) row["path"] = test.path;
  if (test.numa_node >= 0) row["numa_node"] = test.numa_node;
  row["block_bytes"] = test.shape.block_bytes;
  row["parts"] = test.parts == 0 ? Result() : Result(test.parts);
  row["queue_depth"] = test.shape.queue_depth;
  row["threads"] = test.shape.threads;
  row["gb_per_s"] = median(gb_per_s_);
  row["iops"] = median(iops_);
  row["p50_us"] = median(p50_us_);
  row["p99_us"] = median(p99_us_);
  row["p999_us"] = median(p999_us_);
  row["cpu_s_per_gib"] = own_cpu ? Result(median(cpu_s_per_gib_)) : Result();
  row["runs"] = gb_per_s_.size();
  row["spread"] = spread(gb_per_s_);
  row["time_axis"] = axis_;
  return row;
}

}  // namespace terrace::bench
