// metrics.jsonl: one JSON object a step, every number so that it reads back as the same bits.
//
// Owner:   the trainer owns the writer; the report reads.
// Threads: one.
// Errors:  Error naming the file and errno when a line cannot be written. A torn last line, as a crash leaves it, is dropped;
//          a line broken elsewhere is Error(Exit::corrupt) with its number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace terrace::cli {

inline constexpr const char* kMetricsFile = "metrics.jsonl";

struct StepMetrics {
  std::uint64_t step = 0;  // counts from 1: how many steps are done
  double loss = 0, grad_norm = 0, lr = 0;
  std::uint64_t tokens = 0;  // of this step
  double step_time_s = 0, tokens_per_s = 0;
  std::uint64_t device_peak_bytes = 0, host_peak_bytes = 0, nvme_peak_bytes = 0;
  std::uint64_t read_bytes = 0, write_bytes = 0, h2d_bytes = 0, d2h_bytes = 0;
  double stall_s = 0;
  std::map<std::string, double> stall;                     // by cause; their sum is stall_s
  double communication_s = 0, hidden_communication_s = 0;  // between ranks; of it, beside computing
  std::optional<double> eval_loss;                         // of the evaluation after this step
  bool skipped = false;                                    // not finite: the weights stayed as they were
};

nlohmann::json to_json(const StepMetrics& metrics);
StepMetrics metrics_from_json(const nlohmann::json& object);  // absent keys keep their defaults

class MetricsWriter {
 public:
  // Continues after `done_steps`: objects of later steps, and a torn last line, are removed. 0: an empty file.
  MetricsWriter(std::filesystem::path file, std::uint64_t done_steps);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void write(const StepMetrics& metrics);  // one write call a line, so that readers never see half of one

 private:
  std::filesystem::path file_;
  int fd_ = -1;
};

std::vector<StepMetrics> read_metrics(const std::filesystem::path& file);

}  // namespace terrace::cli
