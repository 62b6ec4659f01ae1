// The table of a step's metrics: name, unit, help and field. metrics.jsonl, TensorBoard and Prometheus take their names from
// it, so that a new metric is one line here and its field in StepMetrics.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <terrace/examples/terrace/metrics/metrics.h>

namespace terrace::cli {

struct Metric {
  using ByCause = std::map<std::string, double> StepMetrics::*;
  using Field =
      std::variant<std::uint64_t StepMetrics::*, double StepMetrics::*, std::optional<double> StepMetrics::*, ByCause>;

  std::string_view group, key;  // "mem", "host_peak_bytes". No group: at the top. No key: one value for each cause
  std::string_view unit, help;
  Field field;
  double StepMetrics::*only_with = nullptr;  // absent unless this is positive
  std::string_view label = "cause";          // what distinguishes the values of a metric without a key

  // "mem.host_peak_bytes", with the separator of the sink
  [[nodiscard]] std::string name(char separator) const;
};

std::span<const Metric> metric_table();

// One number of a step. Counts stay whole numbers for the sinks that can hold them.
struct MetricValue {
  bool is_count = false;
  std::uint64_t count = 0;
  double real = 0;  // also set for a count
};
// Empty if the step does not have this metric. A metric without a key gives several values, each with its cause.
std::vector<std::pair<std::string, MetricValue>> values_of(const Metric& metric, const StepMetrics& step);

}  // namespace terrace::cli
