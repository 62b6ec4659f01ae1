#include <terrace/examples/terrace/plan/lanes_picture.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <terrace/examples/terrace/base/svg.h>

namespace terrace::cli {
namespace {

constexpr double kLeft = 190, kTop = 48, kWidth = 1200, kRow = 16, kGap = 6, kLetter = 6;

struct LaneLook {
  std::string_view begins;  // how the name of an action begins
  const char* fill;
  const char* what;
};
constexpr LaneLook kLooks[] = {{"forward", "#9ecae1", "forward"},
                               {"backward-input", "#fdd0a2", "input half"},
                               {"backward-weight", "#a1d99b", "weight half"},
                               {"backward", "#fdae6b", "backward"},
                               {"update", "#bcbddc", "update"},
                               {"", "#d9d9d9", "other"}};

const char* fill_of(const std::string& name) {
  return std::ranges::find_if(kLooks, [&](const LaneLook& look) { return name.starts_with(look.begins); })->fill;
}

// "forward l3 m0": 0; empty for an action without a micro-batch.
std::string micro_batch_of(const std::string& name) {
  const auto at = name.find(" m");
  return at == std::string::npos ? "" : name.substr(at + 2, name.find(' ', at + 1) - at - 2);
}

struct Picture {
  double seconds = 0;  // length of the axis
  double y = kTop;
  std::string out = {};

  // `longest_s`: the longest of all ranks' windows like this one.
  void row(const std::string& label, const TraceWindow& window, double longest_s, const std::string& lane) {
    const auto found = std::ranges::find(window.rows, lane, &TraceWindow::Row::lane);
    const double busy = found == window.rows.end() || window.seconds <= 0 ? 0 : 100 * found->busy_s / window.seconds;
    out += fmt::format("<text x='8' y='{:.1f}'>{}</text><text x='{}' y='{:.1f}' text-anchor='end'>{:.0f} %</text>\n", y + 12,
                       escape(label), kLeft - 8, y + 12, busy);
    const double before = longest_s - window.seconds;
    out += fmt::format("<rect x='{:.2f}' y='{:.1f}' width='{:.2f}' height='{}' fill='#f4f4f4'/>\n",
                       kLeft + kWidth * before / seconds, y, kWidth * window.seconds / seconds, kRow - 2);
    for (const auto& span : found == window.rows.end() ? std::vector<TraceWindow::Span>{} : found->spans) {
      const double begin = kLeft + kWidth * (before + span.begin_s) / seconds;
      const double width = kWidth * (span.end_s - span.begin_s) / seconds;
      out += fmt::format(
          "<rect x='{:.2f}' y='{:.1f}' width='{:.2f}' height='{}' fill='{}' stroke='#555' stroke-width='0.3'><title>{}, {:.3g} "
          "s</title></rect>",
          begin, y, std::max(width, 0.2), kRow - 2, fill_of(span.name), escape(span.name), span.end_s - span.begin_s);
      const auto number = micro_batch_of(span.name);
      if (!number.empty() && width > kLetter * static_cast<double>(number.size()) + 2)
        out += fmt::format("<text x='{:.2f}' y='{:.1f}' text-anchor='middle'>{}</text>", begin + width / 2, y + 11.5, number);
      out += '\n';
    }
    y += kRow;
  }
};

std::vector<std::string> lanes_of(const RankLanes& rank) {
  std::vector<std::string> lanes;
  for (const auto* const window : {&rank.simulated, &rank.measured})
    for (const auto& row : window->rows)
      if (!row.spans.empty() && std::ranges::find(lanes, row.lane) == lanes.end()) lanes.push_back(row.lane);
  return lanes;
}

}  // namespace

std::string lanes_picture(std::span<const RankLanes> ranks, const std::string& title) {
  double simulated_s = 0, measured_s = 0;
  for (const auto& rank : ranks) {
    simulated_s = std::max(simulated_s, rank.simulated.seconds);
    measured_s = std::max(measured_s, rank.measured.seconds);
  }
  Picture picture{.seconds = std::max({simulated_s, measured_s, 1e-9})};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& lane : lanes_of(ranks[r])) {
      picture.row(fmt::format("rank {} {}, simulated", r, lane), ranks[r].simulated, simulated_s, lane);
      picture.row("measured", ranks[r].measured, measured_s, lane);
      picture.y += kGap;
    }
    picture.y += kGap;
  }
  const double height = picture.y + 40;
  auto out = fmt::format(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {:.0f} {:.0f}' font-family='sans-serif' font-size='10'>\n"
      "<rect width='100%' height='100%' fill='white'/>\n<text x='8' y='16' font-size='13'>{}</text>\n",
      kLeft + kWidth + 20, height, escape(title));
  double legend = kLeft;
  for (const auto& look : kLooks) {
    out += fmt::format("<rect x='{:.1f}' y='26' width='12' height='12' fill='{}'/><text x='{:.1f}' y='36'>{}</text>\n", legend,
                       look.fill, legend + 16, look.what);
    legend += 110;
  }
  return out + picture.out +
         fmt::format(
             "<text x='{}' y='{:.1f}'>a step: simulated {:.4g} s, measured {:.4g} s; numbers are micro-batches, "
             "percentages say how busy a lane is</text>\n</svg>\n",
             kLeft, height - 16, simulated_s, measured_s);
}

}  // namespace terrace::cli
