#include <terrace/examples/terrace/report/bench_time.h>

#include <algorithm>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/report/bench_colours.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

using Points = std::vector<std::pair<double, double>>;

constexpr std::size_t kLeastPoints = 3;
constexpr double kLeastPart = 0.5;  // of the usual width: the rate of a shorter last second is chance

double value(const nlohmann::ordered_json& of, const char* key) {
  return of.is_object() && of.contains(key) && of.at(key).is_number() ? of.at(key).get<double>() : 0;
}

// GB/s by the time since the first run's begin; the runs follow each other.
Points points_of(const nlohmann::ordered_json& axis) {
  Points points;
  double begin_s = 0, width_s = 0;
  for (const auto& second : axis) width_s = std::max(width_s, value(second, "seconds"));
  for (const auto& second : axis) {
    const double seconds = value(second, "seconds");
    if (seconds > 0 && seconds >= kLeastPart * width_s)
      points.emplace_back(begin_s + seconds / 2, 1e-9 * value(second, "bytes") / seconds);
    begin_s += seconds;
  }
  return points;
}

}  // namespace

std::string time_curves(std::vector<TimedRow> rows, std::size_t most) {
  std::vector<std::pair<std::string, Points>> curves;
  for (auto& row : rows)
    if (auto points = points_of(row.axis); points.size() >= kLeastPoints) curves.emplace_back(std::move(row.name), points);
  if (curves.empty()) return "";
  std::ranges::stable_sort(curves, std::greater{}, [](const auto& curve) { return curve.second.size(); });
  curves.resize(std::min(curves.size(), most));
  Plot plot{.left = 70, .top = 10, .width = 634, .height = 230, .x_high = 0, .y_high = 0};
  for (const auto& [name, points] : curves)
    for (const auto& [s, gb_per_s] : points)
      plot.x_high = std::max(plot.x_high, s), plot.y_high = std::max(plot.y_high, 1.05 * gb_per_s);
  if (plot.y_high == 0) plot.y_high = 1;
  const auto tick = [](double v) { return format_number(v, 3); };
  auto content = plot.axes(tick, tick, "seconds");
  std::string legend = "<p class='legend'>";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const auto* const colour = kBenchColours[i % kBenchColours.size()];
    content += fmt::format("<g style='stroke: var(--{})'>{}</g>", colour, plot.line(curves[i].second, "line"));
    legend += fmt::format("<span><i class='c-{}'></i>{}</span>", colour, escape(curves[i].first));
  }
  return legend + "</p>" + svg(720, plot.top + plot.height + 44, "GB/s by second", content);
}

}  // namespace terrace::cli
