#include <terrace/examples/terrace/metrics/metric_table.h>

namespace terrace::cli {
namespace {

constexpr Metric kMetrics[] = {
    {"", "step", "steps", "Finished steps", &StepMetrics::step},
    {"", "loss", "nats", "Training loss, the mean over the target tokens of the step; absent if it had none",
     &StepMetrics::loss},
    {"", "eval_loss", "nats", "Held-out loss of the evaluation after the step", &StepMetrics::eval_loss},
    {"", "first_eval_loss", "nats", "Held-out loss of the evaluation before the first step", &StepMetrics::first_eval_loss},
    {"held_out", "", "nats", "Held-out loss of the evaluation after the step, by source of the data", &StepMetrics::held_out,
     nullptr, "source"},
    {"epochs", "", "epochs", "How often each source of the data has been trained on", &StepMetrics::epochs, nullptr, "source"},
    {"", "grad_norm", "1", "Norm of all gradients before clipping", &StepMetrics::grad_norm},
    {"", "lr", "1", "Learning rate", &StepMetrics::lr},
    {"", "tokens", "tokens", "Tokens of the step, of all ranks", &StepMetrics::tokens},
    {"", "step_time_s", "seconds", "Time of the step", &StepMetrics::step_time_s},
    {"", "tokens_per_s", "tokens per second", "Tokens of the step divided by its time", &StepMetrics::tokens_per_s},
    {"mem", "device_peak_bytes", "bytes", "Most bytes reserved on the device tier of a rank so far",
     &StepMetrics::device_peak_bytes},
    {"mem", "host_peak_bytes", "bytes", "Most bytes reserved on the host tier of a rank so far", &StepMetrics::host_peak_bytes},
    {"mem", "nvme_peak_bytes", "bytes", "Most bytes reserved on the disk tier of a rank so far", &StepMetrics::nvme_peak_bytes},
    {"offload", "read_bytes", "bytes", "Moved from disk to host in the step", &StepMetrics::read_bytes},
    {"offload", "write_bytes", "bytes", "Moved from host to disk in the step", &StepMetrics::write_bytes},
    {"offload", "h2d_bytes", "bytes", "Moved from host to device in the step", &StepMetrics::h2d_bytes},
    {"offload", "d2h_bytes", "bytes", "Moved from device to host in the step", &StepMetrics::d2h_bytes},
    {"offload", "stall_s", "seconds", "Time of the step that the compute lane waited", &StepMetrics::stall_s},
    {"stall", "", "seconds", "Time of the step that the compute lane waited, by what it waited for", &StepMetrics::stall},
    {"communication", "seconds", "seconds", "Time of the step that ranks exchanged", &StepMetrics::communication_s,
     &StepMetrics::communication_s},
    {"communication", "hidden_s", "seconds", "Part of the exchange that ran while computing",
     &StepMetrics::hidden_communication_s, &StepMetrics::communication_s},
    {"", "commit_s", "seconds", "Time that the run waited for commits between the step before and this one",
     &StepMetrics::commit_s, &StepMetrics::commit_s},
    {"router", "balance", "1", "Balance of the routers' choices, 1 if all experts are chosen equally often",
     &StepMetrics::router_balance},
    {"router", "z", "1", "Mean square of the log-sum-exp of the routers' logits", &StepMetrics::router_z},
    {"router", "dropped", "tokens", "Rows that found their expert full", &StepMetrics::router_dropped},
};

MetricValue value_of(std::uint64_t count) { return {true, count, static_cast<double>(count)}; }
MetricValue value_of(double real) { return {false, 0, real}; }

}  // namespace

std::string Metric::name(char separator) const {
  std::string out(group);
  if (!group.empty() && !key.empty()) out += separator;
  return out += key;
}

std::span<const Metric> metric_table() { return kMetrics; }

std::vector<std::pair<std::string, MetricValue>> values_of(const Metric& metric, const StepMetrics& step) {
  std::vector<std::pair<std::string, MetricValue>> out;
  if (metric.only_with && !(step.*metric.only_with > 0)) return out;
  if (const auto* const field = std::get_if<std::uint64_t StepMetrics::*>(&metric.field))
    out.emplace_back("", value_of(step.**field));
  if (const auto* const field = std::get_if<double StepMetrics::*>(&metric.field)) out.emplace_back("", value_of(step.**field));
  if (const auto* const field = std::get_if<std::optional<double> StepMetrics::*>(&metric.field); field && step.**field)
    out.emplace_back("", value_of(*(step.**field)));
  if (const auto* const field = std::get_if<Metric::ByCause>(&metric.field))
    for (const auto& [cause, seconds] : step.**field) out.emplace_back(cause, value_of(seconds));
  return out;
}

}  // namespace terrace::cli
