#include <terrace/examples/terrace/metrics/step_metrics.h>

#include <algorithm>

namespace terrace::cli {

StepMetrics metrics_of(const Engine& engine, const Trainer& trainer, const Trainer::Step& step) {
  const auto& r = step.result;
  StepMetrics m;
  m.step = step.number;
  m.lr = step.learning_rate;
  m.tokens = trainer.tokens_a_step();
  if (step.targets > 0) m.loss = step.mean_loss();
  m.grad_norm = r.gradient_norm;
  if (routers_in(engine.map().model()) > 0) {
    m.router_balance = r.router.balance;
    m.router_z = r.router.squares;
    m.router_dropped = r.router.dropped;
  }
  m.step_time_s = r.seconds;
  m.tokens_per_s = static_cast<double>(m.tokens) / r.seconds;
  const auto peak = engine.peak_bytes();
  m.device_peak_bytes = peak[Tier::device];
  m.host_peak_bytes = peak[Tier::host];
  m.nvme_peak_bytes = peak[Tier::disk];
  m.read_bytes = r.moved.read;
  m.write_bytes = r.moved.write;
  m.h2d_bytes = r.moved.upload;
  m.d2h_bytes = r.moved.download;
  m.communication_s = r.communicated.seconds;
  m.hidden_communication_s = r.communicated.hidden_s;
  m.stall = r.stall_s;
  for (const auto& [cause, seconds] : r.stall_s) m.stall_s += seconds;
  return m;
}

StepMetrics of_team(StepMetrics m, const ParallelConfig& config, Team& team) {
  const auto all = m;
  for (auto* const bytes : {&m.device_peak_bytes, &m.host_peak_bytes, &m.nvme_peak_bytes}) *bytes = team.max(*bytes);
  if (config.sync_interval > 1) m.grad_norm = std::ranges::max(team.each(m.grad_norm));
  for (auto* const bytes : {&m.read_bytes, &m.write_bytes, &m.h2d_bytes, &m.d2h_bytes}) *bytes = team.sum(*bytes);
  return team.first() ? m : all;
}

}  // namespace terrace::cli
