#include <terrace/examples/terrace/report/report_compare.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/run_name.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/report/report_template.h>
#include <terrace/examples/terrace/report/run_steps.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;

// Colours of the page's style that differ most from each other. More runs than colours also differ by dashes.
constexpr std::array<const char*, 6> kColors{"compute", "write", "upload", "read", "update", "download"};

struct ComparedRun {
  std::string name;
  RunSteps steps;
  nlohmann::json settings;  // null: config.toml is missing or cannot be read
};

ComparedRun read_compared(const fs::path& directory) {
  ComparedRun run{.name = name_of_run(directory), .steps = {}, .settings = {}};
  run.steps = read_run_steps(directory / kMetricsFile);
  if (run.steps.count == 0)
    throw base::Refused(
        fmt::format("{} has no step in {}\n  a comparison needs runs with at least one", directory.string(), kMetricsFile));
  try {
    RunConfig config;
    apply_file(config, directory / kConfigFile);
    run.settings = to_json(config);
  } catch (const Error&) {
  }
  return run;
}

// Runs with the same name, such as a/run and b/run, are named by their whole paths.
void tell_apart(std::vector<ComparedRun>& runs, const std::vector<fs::path>& directories) {
  std::map<std::string, int> times;
  for (const auto& run : runs) ++times[run.name];
  for (std::size_t i = 0; i < runs.size(); ++i)
    if (times[runs[i].name] > 1) runs[i].name = directories[i].lexically_normal().string();
}

std::string color_of(std::size_t run) { return kColors[run % kColors.size()]; }

std::string names_with_colors(const std::vector<ComparedRun>& runs) {
  std::string out = "<p class='legend'>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format("<span><i class='c-{}'></i>{}</span>", color_of(i), escape(runs[i].name));
  return out + "</p>";
}

using ValueOfStep = std::function<double(const StepMetrics&)>;  // NaN: the step has none

// The most points of a curve. Each point is the mean of its steps, so that the page of a long run stays small.
constexpr std::size_t kMostPoints = 400;

std::vector<std::pair<double, double>> curve(const ComparedRun& run, const ValueOfStep& value) {
  std::vector<std::pair<double, double>> all;
  for (const auto& point : run.steps.points)
    if (const double v = value(point.mean); std::isfinite(v)) all.emplace_back(point.middle(), v);
  const auto stride = (all.size() + kMostPoints - 1) / kMostPoints;
  if (stride <= 1) return all;
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < all.size(); i += stride) {
    const auto end = std::min(all.size(), i + stride);
    double step = 0, sum = 0;
    for (auto j = i; j < end; ++j) step += all[j].first, sum += all[j].second;
    points.emplace_back(step / static_cast<double>(end - i), sum / static_cast<double>(end - i));
  }
  return points;
}

std::string overlaid(const std::vector<ComparedRun>& runs, const std::string& label, const ValueOfStep& value, bool from_zero) {
  std::vector<std::vector<std::pair<double, double>>> curves;
  double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
  for (const auto& run : runs) {
    curves.push_back(curve(run, value));
    for (const auto& [x, y] : curves.back()) {
      left = std::min(left, x), right = std::max(right, x);
      low = std::min(low, y), high = std::max(high, y);
    }
  }
  if (left > right) return "";
  if (from_zero) low = 0;
  const double margin = high > low ? (high - low) * 0.06 : std::max(1.0, std::abs(high)) * 0.1;
  const Plot plot{.left = 64,
                  .top = 10,
                  .width = 640,
                  .height = 220,
                  .x_low = left,
                  .x_high = std::max(right, left + 1),
                  .y_low = from_zero ? 0 : low - margin,
                  .y_high = high + margin,
                  .x_counts = true};
  const auto step_tick = [](double v) { return fmt::format("{:.0f}", v); };
  const auto value_tick = [](double v) { return fmt::format("{:.6g}", v); };
  auto content = plot.axes(step_tick, value_tick, "step");
  for (std::size_t i = 0; i < curves.size(); ++i) {
    // Dashes show both of two equal curves, as runs with different budgets have.
    const auto before = curves.begin() + static_cast<std::ptrdiff_t>(i);
    const bool hides = i >= kColors.size() || std::find(curves.begin(), before, curves[i]) != before;
    if (curves[i].size() > 1) content += plot.line(curves[i], fmt::format("line k-{}{}", color_of(i), hides ? " dashed" : ""));
    if (curves[i].size() == 1)  // a line of one point has no length
      content += fmt::format("<circle class='c-{}' cx='{:.1f}' cy='{:.1f}' r='3'/>", color_of(i), plot.x(curves[i][0].first),
                             plot.y(curves[i][0].second));
  }
  return svg(720, 280, label, content);
}

std::string chart_section(const std::vector<ComparedRun>& runs, const std::string& title, const std::string& about,
                          const ValueOfStep& value, bool from_zero) {
  const auto picture = overlaid(runs, title + " by step", value, from_zero);
  if (picture.empty()) return "";
  return fmt::format("<section>\n<h2>{}</h2>\n<p class='quiet'>{}</p>\n{}{}\n</section>\n", title, about,
                     names_with_colors(runs), picture);
}

std::string head_row(const std::vector<ComparedRun>& runs) {
  std::string out = "<tr><th></th>";
  for (std::size_t i = 0; i < runs.size(); ++i)
    out += fmt::format("<th class='run'><i class='c-{}'></i>{}</th>", color_of(i), escape(runs[i].name));
  return out + "</tr>\n";
}

std::string table_section(const std::string& title, const std::string& about, const std::string& rows) {
  return fmt::format(
      "<section>\n<h2>{}</h2>\n<p class='quiet'>{}</p>\n<div class='scroll'><table>\n{}</table></div>\n</section>\n", title,
      about, rows);
}

std::string numbers(const std::vector<ComparedRun>& runs) {
  auto rows = head_row(runs);
  const auto row = [&](const char* name, const std::function<std::string(const ComparedRun&)>& cell) {
    rows += fmt::format("<tr><td>{}</td>", name);
    for (const auto& run : runs) rows += fmt::format("<td>{}</td>", escape(cell(run)));
    rows += "</tr>\n";
  };
  const auto bytes = [](double v) { return format_bytes(static_cast<std::uint64_t>(v)); };
  row("steps", [](const auto& run) { return fmt::format("{}", run.steps.last.step); });
  row("last loss",
      [](const auto& run) { return run.steps.last_loss ? format_number(*run.steps.last_loss, 6) : std::string("–"); });
  row("least held-out loss",
      [](const auto& run) { return run.steps.least_eval ? format_number(*run.steps.least_eval, 6) : std::string("–"); });
  row("step time",
      [](const auto& run) { return format_duration(run.steps.median([](const auto& m) { return m.step_time_s; })); });
  row("tokens/s",
      [](const auto& run) { return format_number(run.steps.median([](const auto& m) { return m.tokens_per_s; }), 5); });
  row("stall", [](const auto& run) {
    const auto& all = run.steps.all;
    return fmt::format("{:.1f} %", all.time_s > 0 ? 100 * all.stall_s / all.time_s : 0);
  });
  row("commits", [](const auto& run) {
    const auto& all = run.steps.all;
    const double time = all.time_s + all.commit_s;
    return fmt::format("{:.2f} %", time > 0 ? 100 * all.commit_s / time : 0);
  });
  struct Bytes {
    const char* name;
    std::uint64_t StepMetrics::*field;
  };
  for (const auto& [name, field] :
       {Bytes{"read from disk, a step", &StepMetrics::read_bytes}, Bytes{"written to disk, a step", &StepMetrics::write_bytes},
        Bytes{"host to device, a step", &StepMetrics::h2d_bytes}, Bytes{"device to host, a step", &StepMetrics::d2h_bytes}})
    row(name, [&, field = field](const auto& run) {
      return bytes(run.steps.median([field](const auto& m) { return static_cast<double>(m.*field); }));
    });
  for (const auto& [name, tier] : {std::pair{"device peak", 0U}, {"host peak", 1U}, {"disk peak", 2U}})
    row(name, [tier = tier](const auto& run) { return format_bytes(run.steps.peaks[tier]); });
  return table_section("Numbers", "Times and bytes of a step are the run's median.", rows);
}

std::string settings_that_differ(const std::vector<ComparedRun>& runs) {
  std::string rows;
  for (const auto& o : options()) {
    if (o.key == "out-dir") continue;  // it always differs
    std::vector<std::string> cells;
    for (const auto& run : runs) {
      if (run.settings.is_null()) {
        cells.emplace_back("–");
        continue;
      }
      const auto& value = run.settings.at(std::string(o.section)).at(std::string(o.key));
      cells.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
    if (std::ranges::all_of(cells, [&](const auto& cell) { return cell == cells.front(); })) continue;
    rows += fmt::format("<tr><td>{}</td>", o.key);
    for (const auto& cell : cells) rows += fmt::format("<td class='long'>{}</td>", escape(cell));
    rows += "</tr>\n";
  }
  if (rows.empty()) return "<section>\n<h2>Settings</h2>\n<p class='quiet'>All settings are the same.</p>\n</section>\n";
  return table_section("Settings that differ", "All others are the same.", head_row(runs) + rows);
}

constexpr const char* kStyleOfRuns =
    "<style>.k-compute{stroke:var(--compute)}.k-write{stroke:var(--write)}.k-upload{stroke:var(--upload)}"
    ".k-read{stroke:var(--read)}.k-update{stroke:var(--update)}.k-download{stroke:var(--download)}"
    "th.run{white-space:normal;overflow-wrap:anywhere;min-width:90px}"
    "th.run i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}"
    "td.long{white-space:normal;overflow-wrap:anywhere}.legend span{white-space:normal;overflow-wrap:anywhere}</style>\n";

}  // namespace

fs::path write_comparison(const std::vector<fs::path>& directories) {
  std::vector<ComparedRun> runs;
  for (const auto& directory : directories) runs.push_back(read_compared(directory));
  tell_apart(runs, directories);
  auto body = std::string(kStyleOfRuns) + fmt::format("<h1>{} runs</h1>\n", runs.size());
  body += chart_section(
      runs, "Loss", "Mean over target tokens, in nats.", [](const auto& m) { return m.loss.value_or(NAN); }, false);
  body += chart_section(
      runs, "Held-out loss", "After each evaluation, in nats.", [](const auto& m) { return m.eval_loss.value_or(NAN); }, false);
  body += chart_section(
      runs, "Tokens per second", "Of each step.", [](const auto& m) { return m.tokens_per_s; }, true);
  body += numbers(runs);
  body += settings_that_differ(runs);
  body += "<footer>Made by terrace report from metrics.jsonl and config.toml of each run.</footer>\n";
  const auto file = directories.front() / kComparisonFile;
  write_page(file, report_page(fmt::format("{} runs · terrace", runs.size()), body), directories.front());
  return file;
}

}  // namespace terrace::cli
