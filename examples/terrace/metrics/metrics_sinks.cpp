#include <terrace/examples/terrace/metrics/metrics_sinks.h>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/notice.h>
#include <terrace/examples/terrace/base/run_name.h>
#include <terrace/examples/terrace/metrics/metrics.h>
#include <terrace/examples/terrace/metrics/prometheus_sink.h>
#include <terrace/examples/terrace/metrics/tensorboard_sink.h>

namespace terrace::cli {

template <class Call>
void MetricsSinks::for_watching(const Call& call) {
  std::erase_if(watching_, [&](const auto& sink) {
    try {
      call(*sink);
      return false;
    } catch (const Error& error) {
      base::warn(fmt::format("{}\n  the run continues without it", error.what()));
      return true;
    }
  });
}

void MetricsSinks::write(const StepMetrics& metrics) {
  first_->write(metrics);
  for_watching([&](MetricsSink& sink) { sink.write(metrics); });
}

void MetricsSinks::sync() {
  first_->sync();
  for_watching([](MetricsSink& sink) { sink.sync(); });
}

MetricsSinks metrics_sinks(const RunOptions& options, const std::filesystem::path& run,
                           const std::filesystem::path& metrics_file, bool first, std::uint64_t done_steps) {
  MetricsSinks sinks(std::make_unique<MetricsWriter>(metrics_file, done_steps));
  if (!first) return sinks;
  if (options.tensorboard) sinks.add(std::make_unique<TensorBoardSink>(run / kEventFile, done_steps));
  if (!options.prometheus.empty()) sinks.add(std::make_unique<PrometheusSink>(options.prometheus, name_of_run(run)));
  return sinks;
}

}  // namespace terrace::cli
