// A place that gets the metrics of each step. Each kind has a file of its own: metrics.h (metrics.jsonl), tensorboard_sink.h,
// prometheus_sink.h. All of them take the names from metric_table.h.
//
// Owner:   MetricsSinks. Threads: the rank's. Errors: Error with the file and the reason.
#pragma once

namespace terrace::cli {

struct StepMetrics;

class MetricsSink {
 public:
  MetricsSink() = default;
  virtual ~MetricsSink() = default;
  MetricsSink(const MetricsSink&) = delete;
  MetricsSink& operator=(const MetricsSink&) = delete;

  virtual void write(const StepMetrics& metrics) = 0;
  virtual void sync() {}  // called before a commit: no power loss may then lose the metrics of a committed step
};

}  // namespace terrace::cli
