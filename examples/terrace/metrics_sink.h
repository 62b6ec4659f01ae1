// Where the metrics of a step go. Each kind is a file of its own: metrics.h (metrics.jsonl), tensorboard_sink.h,
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
  virtual void sync() {}  // before a commit: every committed step is there, also after a power loss
};

}  // namespace terrace::cli
