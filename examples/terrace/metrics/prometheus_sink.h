// The last step's metrics in Prometheus' text format, for the textfile collector of its node_exporter. The file is replaced
// after each step, so that a reader sees one whole step.
//
// Owner:   MetricsSinks. Threads: the rank's. Errors: Error with the file and errno.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/examples/terrace/metrics/metric_table.h>
#include <terrace/examples/terrace/metrics/metrics_sink.h>

namespace terrace::cli {

std::string prometheus_name(const Metric& metric);  // "terrace_mem_host_peak_bytes"
// Every sample has the label run="…", because one collector reads the files of several runs.
std::string prometheus_text(const StepMetrics& metrics, std::string_view run);

class PrometheusSink final : public MetricsSink {
 public:
  PrometheusSink(std::filesystem::path file, std::string run);
  void write(const StepMetrics& metrics) override;

 private:
  std::filesystem::path file_;
  std::string run_;
};

// Called before a run begins. Throws Error(ErrorKind::refused) if the file's folder does not exist; accepts an empty path.
void demand_folder_of_prometheus(const std::filesystem::path& file);

}  // namespace terrace::cli
