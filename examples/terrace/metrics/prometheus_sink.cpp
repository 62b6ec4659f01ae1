#include <terrace/examples/terrace/metrics/prometheus_sink.h>

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/terrace/metrics/metric_table.h>

namespace terrace::cli {
namespace {

std::string in_label(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string sample_of(const MetricValue& value) {
  if (value.is_count) return fmt::format("{}", value.count);
  if (std::isnan(value.real)) return "NaN";
  if (std::isinf(value.real)) return value.real < 0 ? "-Inf" : "+Inf";
  return fmt::format("{}", value.real);
}

}  // namespace

std::string prometheus_name(const Metric& metric) { return "terrace_" + metric.name('_'); }

std::string prometheus_text(const StepMetrics& metrics, std::string_view run) {
  const auto of_run = fmt::format("run=\"{}\"", in_label(run));
  std::string out;
  for (const auto& metric : metric_table()) {
    const auto values = values_of(metric, metrics);
    if (values.empty()) continue;
    const auto name = prometheus_name(metric);
    out += fmt::format("# HELP {} {} ({}).\n# TYPE {} gauge\n", name, metric.help, metric.unit, name);
    for (const auto& [cause, value] : values)
      out += fmt::format("{}{{{}{}}} {}\n", name, of_run,
                         cause.empty() ? "" : fmt::format(",{}=\"{}\"", metric.label, in_label(cause)), sample_of(value));
  }
  return out;
}

PrometheusSink::PrometheusSink(std::filesystem::path file, std::string run) : file_(std::move(file)), run_(std::move(run)) {}

void PrometheusSink::write(const StepMetrics& metrics) try {
  replace_text_file(file_, prometheus_text(metrics, run_));
} catch (const Error& error) {
  throw Error(fmt::format("--prometheus: {} cannot be written: {}", file_.string(), error.what()));
}

void demand_folder_of_prometheus(const std::filesystem::path& file) {
  if (file.empty()) return;
  std::error_code error;
  const auto folder = std::filesystem::absolute(file).parent_path();
  if (std::filesystem::is_directory(folder, error)) return;
  throw base::Refused(fmt::format("--prometheus {}: there is no folder {}\n  create it, or give a file in another one",
                                  file.string(), folder.string()));
}

}  // namespace terrace::cli
