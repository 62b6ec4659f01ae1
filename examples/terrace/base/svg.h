// Small pieces of SVG and HTML for the report: escaping, axes with round ticks, lines.
//
// Threads: any. Errors: none.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace terrace::cli {

std::string escape(std::string_view text);  // for HTML and XML, texts and attributes

// Round numbers that cover [low, high], at most about `count` of them.
std::vector<double> round_ticks(double low, double high, int count);

// A plotting area inside a picture, and the values at its edges.
struct Plot {
  double left = 56, top = 12, width = 640, height = 220;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool x_counts = false;  // steps and the like: no ticks between whole numbers

  [[nodiscard]] double x(double value) const;
  [[nodiscard]] double y(double value) const;
  using Label = std::function<std::string(double)>;
  // Grid lines and labels; an empty label function leaves that axis out.
  [[nodiscard]] std::string axes(const Label& x_label, const Label& y_label, const std::string& x_title) const;
  // A polyline through the points; NaN breaks it. If there are many more points than pixels, some are left out.
  [[nodiscard]] std::string line(const std::vector<std::pair<double, double>>& points, std::string_view css_class) const;
};

std::string svg(double width, double height, std::string_view label, const std::string& content);

}  // namespace terrace::cli
