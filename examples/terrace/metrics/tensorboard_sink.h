// The metrics as a TensorBoard event file in the run directory: `tensorboard --logdir RUN`.
//
// One file for the whole life of a run. A resumed run cuts off the records of later steps, which it computes again.
//
// Owner:   MetricsSinks. Threads: the rank's. Errors: Error with the file and errno.
#pragma once

#include <cstdint>
#include <filesystem>

#include <terrace/core/base/files.h>
#include <terrace/examples/terrace/metrics/metrics_sink.h>

namespace terrace::cli {

inline constexpr const char* kEventFile = "events.out.tfevents.terrace";  // TensorBoard looks for "tfevents" in the name

class TensorBoardSink final : public MetricsSink {
 public:
  TensorBoardSink(std::filesystem::path file, std::uint64_t done_steps);
  void write(const StepMetrics& metrics) override;
  void sync() override;

 private:
  std::filesystem::path file_;
  files::FileHandle opened_;
};

}  // namespace terrace::cli
