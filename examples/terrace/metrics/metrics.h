// metrics.jsonl: one JSON object for each step, with a checksum. Every number is written so that reading it gives the same
// bits.
//
// metric_table.h has the names of the numbers.
//
// Owner:   the trainer owns the writer; the report reads.
// Threads: one.
// Errors:  Error with the file and errno if a line cannot be written. An incomplete last line, as a crash leaves it, is
//          dropped; any other broken line is Error(ErrorKind::corrupt) with its number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <terrace/core/base/files.h>
#include <terrace/examples/terrace/metrics/metrics_sink.h>

namespace terrace::cli {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

struct StepMetrics {
  std::uint64_t step = 0;      // counts from 1; the number of finished steps
  std::optional<double> loss;  // absent: the step had no targets, so it changed nothing
  double grad_norm = 0, lr = 0;
  std::uint64_t tokens = 0;  // in this step
  double step_time_s = 0, tokens_per_s = 0;
  std::uint64_t device_peak_bytes = 0, host_peak_bytes = 0, nvme_peak_bytes = 0;
  std::uint64_t read_bytes = 0, write_bytes = 0, h2d_bytes = 0, d2h_bytes = 0;
  double stall_s = 0;
  std::map<std::string, double> stall;                     // by cause; their sum is stall_s
  double communication_s = 0, hidden_communication_s = 0;  // time between ranks, and the part of it that computing hides
  double commit_s = 0;                                     // how long the run waited for commits since the last step
  std::optional<double> eval_loss;                         // of the evaluation after this step
  std::optional<double> first_eval_loss;                   // of the evaluation before the first step
  std::map<std::string, double> held_out, epochs;          // for each source, if the data has several
  std::optional<double> router_balance, router_z, router_dropped;  // of a model with experts (core/math/routing.h)
  bool skipped = false;                                            // loss or norm was not finite; the weights were not changed
};

nlohmann::json to_json(const StepMetrics& metrics);
StepMetrics metrics_from_json(const nlohmann::json& object);  // absent keys keep their defaults

class MetricsWriter final : public MetricsSink {
 public:
  // Continues after `done_steps`: removes the objects of later steps and an incomplete last line. 0: begins an empty file.
  MetricsWriter(std::filesystem::path file, std::uint64_t done_steps);
  void write(const StepMetrics& metrics) override;  // one write call for a line, so that readers never see half a line
  void sync() override;

 private:
  std::filesystem::path file_;
  files::FileHandle opened_;
};

// Passes each line to `take`, which returns false to stop. Throws when it reaches a broken line.
void each_step(const std::filesystem::path& file, const std::function<bool(const StepMetrics&)>& take);
std::vector<StepMetrics> read_metrics(const std::filesystem::path& file);  // for short files
// The line with the lowest held-out loss; empty if no line has one.
std::optional<StepMetrics> best_evaluation(const std::filesystem::path& file);
// Describes the steps that have no line, from the first line to the last finished step; empty: none.
std::string missing_steps(const std::filesystem::path& file, std::uint64_t done_steps);

}  // namespace terrace::cli
