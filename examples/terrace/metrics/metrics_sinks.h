// All sinks of a run. metrics.jsonl is part of the run, so failing to write it ends the run. The other sinks only watch the
// run: if one fails, that is a warning, and it gets no more metrics.
//
// Owner:   the trainer. Threads: the rank's. Errors: those of metrics.jsonl.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <terrace/examples/terrace/config/run_options.h>
#include <terrace/examples/terrace/metrics/metrics_sink.h>

namespace terrace::cli {

class MetricsSinks {
 public:
  explicit MetricsSinks(std::unique_ptr<MetricsSink> first) : first_(std::move(first)) {}
  void add(std::unique_ptr<MetricsSink> watching) { watching_.push_back(std::move(watching)); }
  void write(const StepMetrics& metrics);
  void sync();

 private:
  template <class Call>
  void for_watching(const Call& call);

  std::unique_ptr<MetricsSink> first_;
  std::vector<std::unique_ptr<MetricsSink>> watching_;
};

// The sinks of one rank, which continue after `done_steps`. `first`: whether it is the first rank, whose metrics cover all
// ranks.
MetricsSinks metrics_sinks(const RunOptions& options, const std::filesystem::path& run,
                           const std::filesystem::path& metrics_file, bool first, std::uint64_t done_steps);

}  // namespace terrace::cli
