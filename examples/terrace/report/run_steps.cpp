#include <terrace/examples/terrace/report/run_steps.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace terrace::cli {
namespace {

constexpr std::array kMeans{&StepMetrics::step_time_s,     &StepMetrics::tokens_per_s,           &StepMetrics::stall_s,
                            &StepMetrics::communication_s, &StepMetrics::hidden_communication_s, &StepMetrics::commit_s};
constexpr std::array kBytes{&StepMetrics::read_bytes, &StepMetrics::write_bytes, &StepMetrics::h2d_bytes,
                            &StepMetrics::d2h_bytes};

StepPoint point_of(const StepMetrics& line) {
  StepPoint point{.first = line.step, .lines = 1, .finite = line.loss && std::isfinite(*line.loss) ? 1U : 0U, .mean = line};
  point.mean.held_out.clear();
  point.mean.epochs.clear();
  return point;
}

void append(StepPoint& point, const StepPoint& next) {
  const auto lines = static_cast<double>(point.lines + next.lines);
  const double old_share = static_cast<double>(point.lines) / lines, new_share = static_cast<double>(next.lines) / lines;
  auto& mean = point.mean;
  const auto losses = [](const StepPoint& p) { return p.finite == 0 ? 0 : *p.mean.loss * static_cast<double>(p.finite); };
  const auto finite = point.finite + next.finite;
  if (mean.loss || next.mean.loss)
    mean.loss =
        finite == 0 ? std::numeric_limits<double>::quiet_NaN() : (losses(point) + losses(next)) / static_cast<double>(finite);
  for (const auto field : kMeans) mean.*field = mean.*field * old_share + next.mean.*field * new_share;
  for (const auto field : kBytes)
    mean.*field = static_cast<std::uint64_t>(
        std::round(static_cast<double>(mean.*field) * old_share + static_cast<double>(next.mean.*field) * new_share));
  for (auto& [cause, seconds] : mean.stall) seconds *= old_share;
  for (const auto& [cause, seconds] : next.mean.stall) mean.stall[cause] += seconds * new_share;
  if (next.mean.eval_loss) mean.eval_loss = next.mean.eval_loss;
  if (!mean.first_eval_loss) mean.first_eval_loss = next.mean.first_eval_loss;
  mean.step = next.mean.step;
  point.lines += next.lines;
  point.finite = finite;
}

}  // namespace

std::string name_of_steps(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

void RunSteps::add(const StepMetrics& line, std::uint64_t walked_lines) {
  for (auto* const sums : {&all, &without_first}) {
    if (sums == &without_first && count == 0) continue;
    sums->time_s += line.step_time_s, sums->stall_s += line.stall_s, sums->commit_s += line.commit_s;
  }
  if (count < walked_lines)
    for (const auto field : kBytes) walked.*field += line.*field;
  ++count;
  tokens += line.tokens;
  last = line;
  if (line.loss)
    last_loss = line.loss, last_loss_step = line.step;
  else
    ++without_targets;
  const std::array here{line.device_peak_bytes, line.host_peak_bytes, line.nvme_peak_bytes};
  for (std::size_t tier = 0; tier < here.size(); ++tier) peaks[tier] = std::max(peaks[tier], here[tier]);
  if (line.eval_loss) {
    last_eval = line.eval_loss;
    if (!least_eval || !(*least_eval <= *line.eval_loss)) least_eval = line.eval_loss;
  }
  if (!line.held_out.empty()) held_out = line.held_out;

  if (!points.empty() && points.back().lines < lines_a_point_) return append(points.back(), point_of(line));
  if (points.size() == kMostPoints) {  // each pair becomes one point
    for (std::size_t i = 0; i < kMostPoints / 2; ++i) {
      if (i != 0) points[i] = std::move(points[2 * i]);
      append(points[i], points[2 * i + 1]);
    }
    points.resize(kMostPoints / 2);
    lines_a_point_ *= 2;
  }
  points.push_back(point_of(line));
}

double RunSteps::median(const std::function<double(const StepMetrics&)>& value) const {
  std::vector<double> values;
  for (std::size_t i = points.size() > 2 ? 1 : 0; i < points.size(); ++i) values.push_back(value(points[i].mean));
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

RunSteps read_run_steps(const std::filesystem::path& metrics, std::uint64_t walked_lines) {
  RunSteps steps;
  if (std::filesystem::exists(metrics))
    each_step(metrics, [&](const StepMetrics& line) {
      steps.add(line, walked_lines);
      return true;
    });
  return steps;
}

}  // namespace terrace::cli
