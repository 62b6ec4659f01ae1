#include <terrace/examples/terrace/base/svg.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace terrace::cli {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) return {low};
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-9);
  // Adding 1 to a number beyond 2^53 changes nothing, so the loop counts.
  for (int i = 0; i <= 2 * std::max(count, 1) && (first + i) * step <= high + step * 1e-9; ++i)
    ticks.push_back((first + i) * step + 0.0);  // turns −0 into 0
  return ticks;
}

double Plot::x(double value) const { return left + (x_high > x_low ? (value - x_low) / (x_high - x_low) : 0.5) * width; }
double Plot::y(double value) const {
  return top + height - (y_high > y_low ? (value - y_low) / (y_high - y_low) : 0.5) * height;
}

std::string Plot::axes(const Label& x_label, const Label& y_label, const std::string& x_title) const {
  std::string out;
  if (y_label) {
    for (const double tick : round_ticks(y_low, y_high, 5)) {
      out += fmt::format("<line class='grid' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>", left, left + width, y(tick),
                         y(tick));
      out += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", left - 8, y(tick) + 4,
                         escape(y_label(tick)));
    }
  }
  out += fmt::format("<line class='axis' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>", left, left + width, top + height,
                     top + height);
  if (x_label) {
    for (const double tick : round_ticks(x_low, x_high, 8)) {
      if (x_counts && std::abs(tick - std::round(tick)) > 1e-6) continue;
      out += fmt::format("<text class='tick' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>", x(tick), top + height + 18,
                         escape(x_label(tick)));
    }
  }
  if (!x_title.empty()) {
    out += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", left + width, top + height + 36,
                       escape(x_title));
  }
  return out;
}

std::string Plot::line(const std::vector<std::pair<double, double>>& points, std::string_view css_class) const {
  std::string path;
  bool pen_down = false;
  double last_x = -1e9;
  // If points are denser than half pixels, all of them would make a large file that looks the same.
  const bool dense = static_cast<double>(points.size()) > 4 * width;
  for (const auto& [px, py] : points) {
    if (!std::isfinite(py)) {
      pen_down = false;
      continue;
    }
    if (dense && pen_down && x(px) - last_x < 0.5) continue;
    path += fmt::format("{}{:.1f} {:.2f}", pen_down ? "L" : "M", x(px), y(std::clamp(py, y_low, y_high)));
    pen_down = true;
    last_x = x(px);
  }
  return fmt::format("<path class='{}' d='{}'/>", css_class, path);
}

std::string svg(double width, double height, std::string_view label, const std::string& content) {
  return fmt::format("<div class='scroll'><svg viewBox='0 0 {:.0f} {:.0f}' role='img' aria-label='{}'>{}</svg></div>", width,
                     height, escape(label), content);
}

}  // namespace terrace::cli
