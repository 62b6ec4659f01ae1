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

#include <terrace/examples/terrace/metrics.h>

namespace terrace::cli {

struct Metric {
  using ByCause = std::map<std::string, double> StepMetrics::*;
  using Field =
      std::variant<std::uint64_t StepMetrics::*, double StepMetrics::*, std::optional<double> StepMetrics::*, ByCause>;

  std::string_view group, key;  // "mem", "host_peak_bytes". Without a group, at the top. Without a key, one for each cause
  std::string_view unit, help;
  Field field;
  double StepMetrics::*only_with = nullptr;  // absent unless this is positive
  std::string_view label = "cause";          // what the values of a metric without a key differ in

  // "mem.host_peak_bytes", with the separator of the sink
  [[nodiscard]] std::string name(char separator) const;
};

std::span<const Metric> metric_table();

// A number of a step. Counts are kept whole for the sinks that can hold them.
struct MetricValue {
  bool is_count = false;
  std::uint64_t count = 0;
  double real = 0;  // of a count, too
};
// None if the step does not have this metric; several, each with its cause, of a metric without a key.
std::vector<std::pair<std::string, MetricValue>> values_of(const Metric& metric, const StepMetrics& step);

}  // namespace terrace::cli
