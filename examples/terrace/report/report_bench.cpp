#include <terrace/examples/terrace/report/report_bench.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/bench/old_results.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/report/bench_colours.h>
#include <terrace/examples/terrace/report/bench_time.h>
#include <terrace/examples/terrace/report/report_template.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using Results = std::vector<ordered_json>;

constexpr double kBenchWidth = 720, kNamesWidth = 250, kMostNamesWidth = 400, kLetterWidth = 6.5, kBenchRow = 26;
constexpr std::size_t kCurves = kBenchColours.size();
// A bar shows the first of these keys that a result has.
struct Speed {
  const char* key;
  const char* unit;
};
constexpr std::array<Speed, 4> kSpeeds{
    {{"gb_per_s", "GB/s"}, {"gflop_per_s", "GFLOP/s"}, {"tokens_per_s", "tokens/s"}, {"hit_rate", "of the accesses hit"}}};
constexpr std::array<std::pair<const char*, double>, 3> kPercentiles{{{"p50_us", 0.5}, {"p99_us", 0.99}, {"p999_us", 0.999}}};

std::string text_of(const std::string& key, const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (key.ends_with("_bytes") && value.is_number_unsigned()) return format_bytes(value.get<std::uint64_t>());
  if (value.is_number_integer()) return value.dump();
  if (value.is_number()) return format_number(value.get<double>(), 4);
  return value.dump();
}

std::string microseconds(double us) {
  if (us < 999.5) return fmt::format("{:.3g} µs", us);
  return us < 999.5e3 ? fmt::format("{:.3g} ms", us * 1e-3) : fmt::format("{:.3g} s", us * 1e-6);
}

// "read, 8.00 MiB × 32 × 1": what was measured, without the figures.
std::string name_of(const ordered_json& r) {
  std::string name;
  const auto add = [&](const char* key, const char* between, const char* before = "") {
    if (r.contains(key)) name += (name.empty() ? "" : between) + (before + text_of(key, r.at(key)));
  };
  for (const auto* const key : {"op", "path", "gpu", "policy", "optimizer", "recipe", "dtype", "n", "memory_bytes",
                                "host_memory", "copy_bytes", "block_bytes"})
    add(key, ", ");
  add("queue_depth", " × ");
  if (r.contains("queue_depth"))
    add("threads", " × ");
  else
    add("threads", ", ", "threads: ");
  add("numa_node", ", ", "node ");
  return name;
}

double number(const ordered_json& r, const char* key) {
  return r.contains(key) && r.at(key).is_number() ? r.at(key).get<double>() : NAN;
}

std::string bench_section(const std::string& title, const std::string& about, const std::string& content) {
  return fmt::format("<section>\n<h2>{}</h2>\n<p class='quiet'>{}</p>\n{}\n</section>\n", escape(title), escape(about),
                     content);
}

std::string bars(const Results& results, const Speed& speed) {
  double most = 0;
  for (const auto& r : results) most = std::max(most, number(r, speed.key));
  double names = kNamesWidth;
  for (const auto& r : results) names = std::max(names, kLetterWidth * static_cast<double>(name_of(r).size()));
  names = std::min(names, kMostNamesWidth);
  const Plot plot{.left = names,
                  .top = 6,
                  .width = kBenchWidth - names - 70,
                  .height = kBenchRow * static_cast<double>(results.size()),
                  .x_low = 0,
                  .x_high = most > 0 ? most * 1.05 : 1,
                  .y_low = 0,
                  .y_high = 1};
  std::string content = plot.axes([](double v) { return format_number(v, 3); }, {}, speed.unit);
  double top = plot.top;
  for (const auto& r : results) {
    const double value = number(r, speed.key), spread = std::max(0.0, number(r, "spread"));
    content += fmt::format("<text class='name' x='0' y='{:.1f}'>{}</text>", top + 17, escape(name_of(r)));
    content += fmt::format(
        "<rect class='span c-compute' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'><title>{}</title></rect>", plot.left,
        top + 4, std::max(0.0, plot.x(value) - plot.left), kBenchRow - 8, escape(r.dump()));
    const double low = plot.x(std::max(0.0, value * (1 - spread / 2))),
                 high = plot.x(std::min(value * (1 + spread / 2), plot.x_high));
    content += fmt::format("<line class='axis' style='stroke: var(--ink)' x1='{:.1f}' x2='{:.1f}' y1='{:.1f}' y2='{:.1f}'/>",
                           low, high, top + kBenchRow / 2, top + kBenchRow / 2);
    content += fmt::format("<text class='tick' text-anchor='end' x='{:.1f}' y='{:.1f}'>{}</text>", kBenchWidth - 4, top + 17,
                           escape(format_number(value, 4)));
    top += kBenchRow;
  }
  return svg(kBenchWidth, top + 44, fmt::format("{} by test", speed.unit), content);
}

// The x axis counts the nines of the percentile, and the y axis is the logarithm of the time, so that the tails are visible.
std::string latency_curves(Results results) {
  std::erase_if(results, [](const ordered_json& r) { return !(number(r, "p50_us") > 0) || !(number(r, "p999_us") > 0); });
  if (results.empty()) return "";
  std::ranges::stable_sort(results, std::greater{}, [](const ordered_json& r) { return number(r, "gb_per_s"); });
  const auto all = results.size();
  results.resize(std::min(all, kCurves));
  const auto nines = [](double fraction) { return -std::log10(1 - fraction); };
  double low = 1e300, high = -1e300;
  for (const auto& r : results) {
    for (const auto& [key, fraction] : kPercentiles) {
      const double v = std::log10(number(r, key));
      low = std::min(low, v), high = std::max(high, v);
    }
  }
  const Plot plot{.left = 70,
                  .top = 10,
                  .width = kBenchWidth - 86,
                  .height = 230,
                  .x_low = nines(0.5),
                  .x_high = nines(0.999),
                  .y_low = low - 0.1,
                  .y_high = high + 0.1};
  std::string content = plot.axes(
      {}, [](double v) { return microseconds(std::pow(10, v)); }, "");
  for (const auto& [key, fraction] : kPercentiles)
    content += fmt::format("<text class='tick' text-anchor='middle' x='{:.1f}' y='{:.1f}'>{}</text>", plot.x(nines(fraction)),
                           plot.top + plot.height + 18, fmt::format("p{:g}", 100 * fraction));
  std::string legend = "<p class='legend'>";
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    for (const auto& [key, fraction] : kPercentiles) points.emplace_back(nines(fraction), std::log10(number(results[i], key)));
    content += fmt::format("<g style='stroke: var(--{})'>{}</g>", kBenchColours[i], plot.line(points, "line"));
    legend += fmt::format("<span><i class='c-{}'></i>{}</span>", kBenchColours[i], escape(name_of(results[i])));
  }
  legend += "</p>";
  if (all > results.size()) legend += fmt::format("<p class='quiet'>The fastest {} of {} tests.</p>", results.size(), all);
  return legend + svg(kBenchWidth, plot.top + plot.height + 30, "Latency by percentile", content);
}

// Results of one bench may have different keys: one table for each set of keys.
std::string tables(const Results& results) {
  std::string out, keys;
  for (const auto& r : results) {
    std::string head, row;
    for (const auto& [key, value] : r.items()) {
      head += fmt::format("<th>{}</th>", escape(key));
      row += fmt::format("<td>{}</td>", escape(text_of(key, value)));
    }
    if (head != keys)
      out += fmt::format("{}<div class='scroll'><table>\n<tr>{}</tr>\n", keys.empty() ? "" : "</table></div>\n", head);
    keys = head;
    out += fmt::format("<tr>{}</tr>\n", row);
  }
  return out + "</table></div>\n";
}

// Takes the lists out of the results: they are no figures of a table.
std::vector<TimedRow> take_time_axes(Results& results) {
  std::vector<TimedRow> rows;
  for (auto& r : results) {
    if (r.contains("time_axis") && r.at("time_axis").is_array()) rows.push_back({name_of(r), r.at("time_axis")});
    std::vector<std::string> lists;
    for (const auto& [key, value] : r.items())
      if (value.is_structured()) lists.push_back(key);
    for (const auto& key : lists) r.erase(key);
  }
  return rows;
}

std::string sections_of(const std::string& bench, Results results) {
  const auto timed = take_time_axes(results);
  std::string out;
  const auto title = [&](const std::string& what) { return bench.empty() ? what : bench + ": " + what; };
  for (const auto& speed : kSpeeds) {
    Results with;
    std::ranges::copy_if(results, std::back_inserter(with), [&](const auto& r) { return std::isfinite(number(r, speed.key)); });
    if (with.empty()) continue;
    out += bench_section(title(speed.unit), "Medians of the runs; the line at the end of a bar shows their spread.",
                         bars(with, speed));
    break;  // one picture of speed for each bench
  }
  if (const auto curves = latency_curves(results); !curves.empty())
    out += bench_section(title("latency"),
                         "From handing a request over to seeing its end; a deep queue's waiting is part of it.", curves);
  if (const auto curves = time_curves(timed, kCurves); !curves.empty())
    out += bench_section(title("speed by second"), "The runs of a test follow each other.", curves);
  return out + bench_section(title("all figures"), "", tables(results));
}

}  // namespace

fs::path write_bench_report(const fs::path& json_file) {
  auto page = json_file;
  page.replace_extension("html");
  if (page == json_file)
    throw base::Refused(
        fmt::format("{} has the name of the page that is made of it\n  give the file another ending", json_file.string()));
  const auto json = bench::read_results(json_file, "give a run directory, or the output of `terrace bench … --json`");
  std::vector<std::pair<std::string, Results>> benches;  // in the order in which they ran
  for (auto r : json.at("results")) {
    const auto bench = r.contains("bench") ? text_of("bench", r.at("bench")) : "";
    r.erase("bench");
    if (benches.empty() || benches.back().first != bench) benches.push_back({bench, {}});
    benches.back().second.push_back(std::move(r));
  }
  std::string body = fmt::format("<h1>{}</h1>\n<p class='quiet'>What this machine can do</p>\n<div class='tiles'>\n",
                                 escape(json_file.stem().string()));
  for (const auto& [key, value] : json.at("machine").items())
    if (!value.is_structured())
      body += fmt::format("<div class='tile'><b style='font-size: 15px'>{}</b><span>{}</span></div>\n",
                          escape(text_of(key, value)), escape(key));
  body += "</div>\n";
  for (const auto& [bench, results] : benches) body += sections_of(bench, results);
  body += fmt::format("<footer>Made by terrace report from {}.</footer>\n", escape(json_file.filename().string()));

  write_page(page, report_page(json_file.stem().string() + " · terrace bench", body), json_file);
  return page;
}

}  // namespace terrace::cli
