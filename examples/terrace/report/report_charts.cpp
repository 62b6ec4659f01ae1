#include <terrace/examples/terrace/report/report_charts.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

constexpr double kChartWidth = 720;
constexpr double kLaneNames = 112;  // width of the names of lanes and tiers; "communication" is the longest
using Points = std::vector<std::pair<double, double>>;

std::string whole(double value) { return fmt::format("{:.0f}", value); }
// Tick labels need no more digits than the distance of the ticks.
std::string compact(double value) { return fmt::format("{:.4g}", value); }
std::string duration_tick(double seconds) {
  return seconds == 0 ? "0" : seconds < 1 ? fmt::format("{:.4g} ms", seconds * 1e3) : fmt::format("{:.4g} s", seconds);
}

// The style class of a lane, a cause or a tier; unknown ones are grey.
std::string color_class(const std::string& name) {
  static const std::set<std::string> known{"compute", "update", "upload", "download", "read",
                                           "write",   "device", "host",   "disk"};
  return known.contains(name) ? "c-" + name : "c-other";
}

std::string legend(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = "<p class='legend'>";
  for (const auto& [css_class, text] : entries)
    out += fmt::format("<span><i class='{}'></i>{}</span>", css_class, escape(text));
  return out + "</p>";
}

}  // namespace

std::string loss_chart(const std::vector<StepPoint>& points) {
  Points train, smooth, held_out;
  double low = 1e300, high = -1e300;
  std::vector<const StepPoint*> with_loss;
  for (const auto& point : points) {
    const auto& m = point.mean;
    if (m.loss) with_loss.push_back(&point), train.emplace_back(point.middle(), *m.loss);
    if (m.first_eval_loss) held_out.emplace_back(static_cast<double>(point.first) - 1, *m.first_eval_loss);
    if (m.eval_loss) held_out.emplace_back(static_cast<double>(m.step), *m.eval_loss);
    for (const auto& v : {m.loss, m.eval_loss, m.first_eval_loss})
      if (v && std::isfinite(*v)) low = std::min(low, *v), high = std::max(high, *v);
  }
  // For long runs: the mean over a fiftieth of the run, centred on each step, so that it does not lag.
  const std::size_t reach = train.size() / 100;
  for (std::size_t i = 0; i < train.size(); ++i) {
    const auto first = i < reach ? 0 : i - reach, last = std::min(train.size(), i + reach + 1);
    double sum = 0;
    for (std::size_t j = first; j < last; ++j) sum += train[j].second;
    smooth.emplace_back(train[i].first, sum / static_cast<double>(last - first));
  }
  if (low > high) low = 0, high = 1;
  const double margin = high > low ? (high - low) * 0.06 : std::max(1.0, std::abs(high)) * 0.1;
  const Plot plot{.left = 56,
                  .top = 10,
                  .width = kChartWidth - 72,
                  .height = 230,
                  .x_low = static_cast<double>(points.front().first - (points.front().mean.first_eval_loss ? 1 : 0)),
                  .x_high = static_cast<double>(points.back().mean.step),
                  .y_low = low - margin,
                  .y_high = high + margin,
                  .x_counts = true};
  const bool smoothed = train.size() >= 100;
  std::string content = plot.axes(whole, compact, "step");
  content += plot.line(train, smoothed ? "line s-compute faint" : "line s-compute");
  if (smoothed) content += plot.line(smooth, "line s-compute");
  if (train.size() == 1 && std::isfinite(train.front().second))  // one point makes no line
    content += fmt::format("<circle class='c-compute' r='3.5' cx='{:.1f}' cy='{:.1f}'/>", plot.x(train.front().first),
                           plot.y(train.front().second));
  content += plot.line(held_out, "line s-write dashed");
  for (const auto& [step, loss] : held_out) {
    if (!std::isfinite(loss)) continue;
    content +=
        fmt::format("<circle class='c-write' r='3.5' cx='{:.1f}' cy='{:.1f}'><title>step {}: held-out loss {}</title></circle>",
                    plot.x(step), plot.y(loss), whole(step), format_number(loss, 6));
  }
  // Invisible targets, over which a pointer shows the numbers.
  const std::size_t stride = std::max<std::size_t>(1, train.size() / 300);
  const double target = plot.width / static_cast<double>(std::max<std::size_t>(1, train.size() / stride));
  for (std::size_t i = 0; i < train.size(); i += stride) {
    content +=
        fmt::format("<rect class='hit' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'><title>{}: loss {}</title></rect>",
                    plot.x(train[i].first) - target / 2, plot.top, target, plot.height,
                    name_of_steps(with_loss[i]->first, with_loss[i]->mean.step), format_number(train[i].second, 6));
  }
  std::vector<std::pair<std::string, std::string>> entries{
      {"c-compute", smoothed ? "training loss, and its running mean" : "training loss"}};
  if (!held_out.empty()) entries.emplace_back("c-write", "held-out loss");
  return legend(entries) + svg(kChartWidth, 290, "Loss by step", content);
}

std::string number_chart(const std::vector<StepPoint>& points, const std::string& name, double StepMetrics::*number) {
  Points line;
  double high = 0;
  for (const auto& point : points) {
    const double value = point.mean.*number;
    if (!std::isfinite(value)) continue;
    line.emplace_back(point.middle(), value);
    high = std::max(high, value);
  }
  if (high <= 0) return {};
  const Plot plot{.left = 64,
                  .top = 24,
                  .width = kChartWidth - 80,
                  .height = 90,
                  .x_low = static_cast<double>(points.front().first),
                  .x_high = static_cast<double>(points.back().mean.step),
                  .y_low = 0,
                  .y_high = high * 1.08,
                  .x_counts = true};
  const auto label = [](double value) { return value >= 1e4 && value < 1e9 ? whole(value) : compact(value); };
  std::string content = plot.axes(whole, label, "") + plot.line(line, "line s-compute");
  content += fmt::format("<text class='name' x='0' y='12'>{}</text>", escape(name));
  if (line.size() == 1)
    content += fmt::format("<circle class='c-compute' r='3.5' cx='{:.1f}' cy='{:.1f}'/>", plot.x(line.front().first),
                           plot.y(line.front().second));
  const std::size_t stride = std::max<std::size_t>(1, line.size() / 200);
  const double target = plot.width / static_cast<double>(std::max<std::size_t>(1, line.size() / stride));
  for (std::size_t i = 0; i < line.size(); i += stride)
    content +=
        fmt::format("<rect class='hit' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'><title>step {}: {}</title></rect>",
                    plot.x(line[i].first) - target / 2, plot.top, target, plot.height, whole(line[i].first),
                    format_number(line[i].second, 5));
  return svg(kChartWidth, 146, name + " by step", content);
}

std::string stall_chart(const std::vector<StepPoint>& points) {
  // At most 120 bars; a bar is the mean of its points.
  const std::size_t stride = std::max<std::size_t>(1, (points.size() + 119) / 120);
  std::set<std::string> causes;
  for (const auto& point : points)
    for (const auto& [cause, seconds] : point.mean.stall)
      if (seconds > 0) causes.insert(cause);
  struct Bar {
    std::uint64_t first = 0, last = 0;
    double step_time_s = 0;
    std::map<std::string, double> stall;
  };
  std::vector<Bar> bars;
  double high = 0;
  for (std::size_t i = 0; i < points.size(); i += stride) {
    const auto end = std::min(points.size(), i + stride);
    const auto n = static_cast<double>(end - i);
    Bar bar{.first = points[i].first, .last = points[end - 1].mean.step, .step_time_s = 0, .stall = {}};
    double sum = 0;
    for (std::size_t j = i; j < end; ++j) {
      bar.step_time_s += points[j].mean.step_time_s / n;
      for (const auto& [cause, seconds] : points[j].mean.stall) bar.stall[cause] += seconds / n;
    }
    for (const auto& [cause, seconds] : bar.stall) sum += seconds;
    high = std::max(high, sum);
    bars.push_back(std::move(bar));
  }
  if (causes.empty() || high <= 0) return "<p class='quiet'>No step waited for anything.</p>";
  const Plot plot{.left = 64,
                  .top = 10,
                  .width = kChartWidth - 80,
                  .height = 180,
                  .x_low = 0,
                  .x_high = static_cast<double>(bars.size()),
                  .y_low = 0,
                  .y_high = high * 1.05};
  std::string content = plot.axes({}, duration_tick, "step");
  const double slot = plot.width / static_cast<double>(bars.size());
  const double width = std::clamp(slot * 0.8, 0.8, 40.0);
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double left = plot.x(static_cast<double>(i)) + (slot - width) / 2;
    double base = 0;
    for (const auto& [cause, seconds] : bars[i].stall) {
      if (seconds <= 0) continue;
      const double top = plot.y(base + seconds);
      content += fmt::format(
          "<rect class='{}' x='{:.1f}' y='{:.2f}' width='{:.1f}' height='{:.2f}'><title>{}: {} waiting for {} ({:.1f} % of the "
          "step)</title></rect>",
          color_class(cause), left, top, width, std::max(plot.y(base) - top, 0.1), name_of_steps(bars[i].first, bars[i].last),
          format_duration(seconds), escape(cause), bars[i].step_time_s > 0 ? 100 * seconds / bars[i].step_time_s : 0);
      base += seconds;
    }
  }
  const std::size_t every = std::max<std::size_t>(1, (bars.size() + 7) / 8);
  for (std::size_t i = 0; i < bars.size(); i += every) {
    content += fmt::format("<text class='tick' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>",
                           plot.x(static_cast<double>(i)) + slot / 2, plot.top + plot.height + 18, bars[i].first);
  }
  std::vector<std::pair<std::string, std::string>> entries;
  for (const auto& cause : causes) entries.emplace_back(color_class(cause), "waiting for " + cause);
  return legend(entries) + svg(kChartWidth, 240, "Stall by cause and step", content);
}

std::string tier_chart(const TraceWindow& window) {
  static constexpr std::array<const char*, 3> kTiers{"device", "host", "disk"};
  std::string content;
  double top = 24;
  for (const auto* const name : kTiers) {
    const std::string tier = name;
    const auto found = std::ranges::find(window.counters, tier + " bytes", &TraceWindow::Counter::name);
    if (found == window.counters.end()) continue;
    const Plot plot{.left = kLaneNames,
                    .top = top,
                    .width = kChartWidth - kLaneNames - 16,
                    .height = 64,
                    .x_low = 0,
                    .x_high = window.seconds,
                    .y_low = 0,
                    .y_high = std::max(found->peak, 1.0) * 1.08};
    // Reserved bytes change at once, so the curve has steps instead of slopes.
    Points stairs;
    double before = found->values.front().second;
    for (const auto& [at, value] : found->values) {
      stairs.emplace_back(at, before);
      stairs.emplace_back(at, value);
      before = value;
    }
    Points area{{0, 0}};
    area.insert(area.end(), stairs.begin(), stairs.end());
    area.emplace_back(window.seconds, 0);
    content += plot.axes({}, {}, "");
    content += plot.line(area, "area " + color_class(tier));
    content += plot.line(stairs, "line s-" + tier);
    content += fmt::format("<text class='name' x='0' y='{:.1f}'>{}</text><text class='tick' x='0' y='{:.1f}'>peak {}</text>",
                           top + 26, tier, top + 44, escape(format_bytes(static_cast<std::uint64_t>(found->peak))));
    // Invisible targets, at most 200, over which a pointer shows the value.
    const std::size_t stride = std::max<std::size_t>(1, found->values.size() / 200);
    for (std::size_t i = 0; i + 1 < found->values.size(); i += stride) {
      const auto next = std::min(i + stride, found->values.size() - 1);
      const double left = plot.x(found->values[i].first);
      content += fmt::format(
          "<rect class='hit' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'><title>{} after {}: {}</title></rect>", left,
          plot.top, plot.x(found->values[next].first) - left, plot.height, tier, format_duration(found->values[i].first),
          escape(format_bytes(static_cast<std::uint64_t>(std::max(0.0, found->values[i].second)))));
    }
    top += 84;
  }
  if (content.empty()) return "<p class='quiet'>The trace has no counters of the tiers' bytes.</p>";
  const Plot scale{.left = kLaneNames,
                   .top = top - 84,
                   .width = kChartWidth - kLaneNames - 16,
                   .height = 64,
                   .x_low = 0,
                   .x_high = window.seconds,
                   .y_low = 0,
                   .y_high = 1};
  content += scale.axes(duration_tick, {}, "");
  return svg(kChartWidth, top + 12, "Bytes reserved in each tier during a step", content);
}

std::string lane_chart(const TraceWindow& window) {
  constexpr double kRow = 30;
  const Plot plot{.left = kLaneNames,
                  .top = 8,
                  .width = kChartWidth - kLaneNames - 68,
                  .height = kRow * static_cast<double>(window.rows.size()),
                  .x_low = 0,
                  .x_high = window.seconds,
                  .y_low = 0,
                  .y_high = 1};
  std::string content = plot.axes(duration_tick, {}, "");
  double top = plot.top;
  for (const auto& row : window.rows) {
    content += fmt::format("<text class='name' x='0' y='{:.1f}'>{}</text>", top + 19, escape(row.lane));
    content += fmt::format("<rect class='track' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'/>", plot.left, top + 5,
                           plot.width, kRow - 10);
    const auto css_class = color_class(row.lane);
    for (std::size_t i = 0; i < row.spans.size();) {
      // Spans that are narrower than a third of a pixel are joined with their near neighbours.
      std::size_t count = 1;
      double begin = row.spans[i].begin_s, end = row.spans[i].end_s;
      const double pixel = window.seconds / plot.width / 3;
      while (i + count < row.spans.size() && end - begin < pixel && row.spans[i + count].begin_s - end < pixel) {
        end = std::max(end, row.spans[i + count].end_s);
        ++count;
      }
      const auto label = count == 1 ? row.spans[i].name : fmt::format("{} and {} more", row.spans[i].name, count - 1);
      content += fmt::format(
          "<rect class='span {}' x='{:.2f}' y='{:.1f}' width='{:.2f}' height='{:.1f}'><title>{}: {}, at {}</title></rect>",
          css_class, plot.x(begin), top + 5, std::max(plot.x(end) - plot.x(begin), 0.4), kRow - 10, escape(label),
          format_duration(end - begin), format_duration(begin));
      i += count;
    }
    content += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{:.0f} %</text>", kChartWidth - 16,
                           top + 19, window.seconds > 0 ? 100 * row.busy_s / window.seconds : 0);
    top += kRow;
  }
  return svg(kChartWidth, top + 34, "One step by lane", content);
}

}  // namespace terrace::cli
