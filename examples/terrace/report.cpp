#include <terrace/examples/terrace/report.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/error.h>
#include <terrace/core/notice.h>
#include <terrace/core/text_file.h>
#include <terrace/core/units.h>
#include <terrace/examples/terrace/command_line.h>
#include <terrace/examples/terrace/metrics.h>
#include <terrace/examples/terrace/report_charts.h>
#include <terrace/examples/terrace/report_template.h>
#include <terrace/examples/terrace/run_dir.h>
#include <terrace/examples/terrace/run_name.h>
#include <terrace/examples/terrace/screen.h>
#include <terrace/examples/terrace/sealed_json.h>
#include <terrace/examples/terrace/svg.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Steps = std::vector<StepMetrics>;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Without the first step, which has no pending update and warms everything up.
Steps steady(const Steps& steps) { return steps.size() > 2 ? Steps(steps.begin() + 1, steps.end()) : steps; }

double median_of(const Steps& steps, const std::function<double(const StepMetrics&)>& value) {
  std::vector<double> values;
  for (const auto& m : steps) values.push_back(value(m));
  return median(std::move(values));
}

std::optional<std::string> read_text(const fs::path& file) {
  try {
    return read_text_file(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Of a file that need not be there.
json sealed_in(const fs::path& file) try {
  return fs::exists(file) ? parse_sealed(read_text_file(file)) : json();
} catch (const Error& error) {
  throw Error(fmt::format("{} is damaged: {}", file.string(), error.what()));
}

std::string section(const std::string& title, const std::string& about, const std::string& content) {
  return fmt::format("<section>\n<h2>{}</h2>\n<p class='quiet'>{}</p>\n{}\n</section>\n", title, about, content);
}

std::string missing(const std::string& what) { return fmt::format("<p class='quiet missing'>{}</p>", what); }

std::string tiles(const Steps& steps) {
  const auto rest = steady(steps);
  const auto empty = std::ranges::count_if(steps, [](const auto& m) { return !m.loss; });
  double time_s = 0, stall_s = 0;
  std::uint64_t device = 0, host = 0, disk = 0;
  std::optional<double> held_out;
  for (const auto& m : steps) {
    device = std::max(device, m.device_peak_bytes);
    host = std::max(host, m.host_peak_bytes);
    disk = std::max(disk, m.nvme_peak_bytes);
    if (m.eval_loss) held_out = m.eval_loss;
  }
  for (const auto& m : rest) time_s += m.step_time_s, stall_s += m.stall_s;
  std::string out = "<div class='tiles'>\n";
  const auto tile = [&](const std::string& value, const std::string& name) {
    out += fmt::format("<div class='tile'><b>{}</b><span>{}</span></div>\n", escape(value), name);
  };
  if (const auto* const last = last_with_loss(steps))
    tile(format_number(*last->loss, 5), fmt::format("training loss, step {}", last->step));
  if (empty > 0) tile(fmt::format("{}", empty), "steps without targets");
  if (held_out) tile(format_number(*held_out, 5), "held-out loss");
  tile(format_duration(median_of(rest, [](const auto& m) { return m.step_time_s; })), "a step (median)");
  tile(format_number(median_of(rest, [](const auto& m) { return m.tokens_per_s; }), 4), "tokens a second");
  tile(fmt::format("{:.1f} %", time_s > 0 ? 100 * stall_s / time_s : 0), "stalled");
  tile(format_bytes(device), "device peak");
  tile(format_bytes(host), "host peak");
  tile(disk ? format_bytes(disk) : "none", "disk peak");
  return out + "</div>\n";
}

double number(const json& object, const std::vector<const char*>& path) {
  const json* at = &object;
  for (const auto* const key : path) {
    if (!at->is_object() || !at->contains(key)) return NAN;
    at = &at->at(key);
  }
  return at->is_number() ? at->get<double>() : NAN;
}

// `result`: of a finished run, whose peaks are the whole run's, its last commit included, as the plan's are.
std::string planned_table(const json& plan, const json& result, const Steps& steps) {
  const auto rest = steady(steps);
  using Format = std::function<std::string(double)>;
  const Format seconds = format_duration;
  const Format bytes = [](double v) { return format_bytes(static_cast<std::uint64_t>(std::clamp(v, 0.0, 1e18))); };
  std::string rows;
  const auto row = [&](const std::string& name, double planned, double measured, const Format& format, bool exact) {
    std::string difference = "–", css_class;
    if (std::isfinite(planned) && std::isfinite(measured)) {
      if (exact && planned == measured) {
        difference = "equal";
        css_class = " class='same'";
      } else if (exact) {
        difference = fmt::format("{}{}", measured > planned ? "+" : "−", format(std::abs(measured - planned)));
      } else if (planned > 0) {
        const double percent = 100 * (measured / planned - 1);
        // From 1000 % on, the difference itself says more than the percentage.
        difference = percent < 1000 ? fmt::format("{}{:.1f} %", percent < 0 ? "−" : "+", std::abs(percent))
                                    : "+" + format(measured - planned);
      } else if (planned == measured) {
        difference = "equal";
        css_class = " class='same'";
      }
    }
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td{}>{}</td></tr>\n", name,
                        std::isfinite(planned) ? format(planned) : "–", std::isfinite(measured) ? format(measured) : "–",
                        css_class, difference);
  };
  const auto typical = [&](auto member) {
    return median_of(rest, [member](const StepMetrics& m) { return static_cast<double>(m.*member); });
  };
  const auto greatest = [&](auto member) {
    double most = 0;
    for (const auto& m : steps) most = std::max(most, static_cast<double>(m.*member));
    return most;
  };
  row("step time", number(plan, {"step_time_s"}), typical(&StepMetrics::step_time_s), seconds, false);
  double planned_stall = 0;
  if (plan.contains("stall_s") && plan.at("stall_s").is_object())
    for (const auto& [cause, value] : plan.at("stall_s").items()) planned_stall += value.is_number() ? value.get<double>() : 0;
  row("stall", planned_stall, typical(&StepMetrics::stall_s), seconds, false);
  if (const double communication = typical(&StepMetrics::communication_s); communication > 0) {
    const double planned = number(plan, {"communication", "seconds"});
    row("gathers and reductions", planned, communication, seconds, false);
    const Format percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
    row("of these, while computing", number(plan, {"communication", "hidden_s"}) / planned,
        typical(&StepMetrics::hidden_communication_s) / communication, percent, false);
  }
  // Sums over all steps that the plan walked, because single steps differ a little.
  const double walked_steps = number(plan, {"walked", "steps"});
  const auto walked = walked_steps >= 1 && walked_steps < 1e9 ? static_cast<std::size_t>(walked_steps) : 0;
  const auto moved = [&](const std::string& name, const char* key, auto member) {
    double sum = 0;
    for (std::size_t i = 0; i < std::min(walked, steps.size()); ++i) sum += static_cast<double>(steps[i].*member);
    // The metrics of a step have the bytes of all ranks.
    const double all =
        plan.contains("ranks") ? number(plan, {"ranks", "walked_bytes", key}) : number(plan, {"walked", "bytes", key});
    const double planned = walked <= steps.size() ? all : NAN;
    row(fmt::format("{}, {} steps", name, walked), planned, sum, bytes, true);
  };
  moved("read from disk", "read", &StepMetrics::read_bytes);
  moved("written to disk", "write", &StepMetrics::write_bytes);
  moved("host to device", "h2d", &StepMetrics::h2d_bytes);
  moved("device to host", "d2h", &StepMetrics::d2h_bytes);
  const auto peak = [&](const std::string& name, const char* key, auto member) {
    const double of_rank = number(plan, {"peak_bytes", key}), of_ranks = number(plan, {"ranks", "peak_bytes", key});
    const double finished = number(result, {"peak_bytes", key});
    row(name, std::isfinite(of_ranks) ? of_ranks : of_rank, std::isfinite(finished) ? finished : greatest(member), bytes, true);
  };
  peak("device peak", "device", &StepMetrics::device_peak_bytes);
  peak("host peak", "host", &StepMetrics::host_peak_bytes);
  peak("disk peak", "nvme", &StepMetrics::nvme_peak_bytes);
  std::string note;
  const double floor_s = number(plan, {"floor_s"});
  if (std::isfinite(floor_s)) note += fmt::format("Computing alone would take {} in each step. ", format_duration(floor_s));
  if (plan.contains("binding") && plan.at("binding").is_string()) {
    note += fmt::format("The planned step is bound by {}.", escape(plan.at("binding").get<std::string>()));
  }
  return fmt::format(
      "<div "
      "class='scroll'><table>\n<tr><th></th><th>planned</th><th>measured</th><th>difference</th></tr>\n{}</table></div>\n{}",
      rows, note.empty() ? "" : fmt::format("<p class='quiet' style='margin:12px 0 0'>{}</p>", note));
}

// What the run said of its data when it began.
std::string warnings_of_run(const fs::path& dir) try {
  const auto plan = sealed_in(dir / kPlanFile);
  std::string out;
  for (const auto& warning : plan.value("warnings", json::array()))
    out += missing("Warning: " + escape(warning.get<std::string>()) + ".");
  return out;
} catch (const std::exception&) {  // planned_section() says that the file is damaged
  return {};
}

std::string planned_section(const fs::path& dir, const Steps& steps) {
  std::string content;
  if (!fs::exists(dir / kPlanFile)) {
    content = missing("plan.json is missing, so nothing can be compared.");
  } else {
    try {
      content = planned_table(sealed_in(dir / kPlanFile), sealed_in(dir / kResultFile), steps);
    } catch (const Error& e) {
      warn(fmt::format("the report compares nothing with the plan: {}", e.what()));
      content = missing(escape(fmt::format("{}.", e.what())));
    }
  }
  return section("Planned beside measured", "Times of a step (the run's median), bytes moved, and the greatest value of peaks.",
                 content);
}

// Of data with several sources, how often each has been trained on and what its last evaluation found.
std::string sources_section(const Steps& steps) {
  const auto& epochs = steps.back().epochs;
  if (epochs.empty()) return {};
  std::map<std::string, double> held_out;
  for (const auto& m : steps)
    if (!m.held_out.empty()) held_out = m.held_out;
  std::string rows;
  for (const auto& [source, times] : epochs)
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(source), format_number(times, 4),
                        held_out.contains(source) ? format_number(held_out.at(source), 5) : "–");
  return section("Sources of the data", "How often each has been trained on, and its held-out loss in the last evaluation.",
                 fmt::format("<div class='scroll'><table>\n<tr><th></th><th>epochs</th><th>held-out loss</th></tr>\n{}</table>"
                             "</div>",
                             rows));
}

std::string step_sections(const fs::path& dir, const Steps& steps) {
  const auto one = [](const std::string& content) {
    return section("One step, lane by lane", "What ran when, and how busy each lane was.", content);
  };
  if (!fs::exists(dir / kTraceFile)) return one(missing("trace.json is missing, so no step can be drawn."));
  try {
    auto window = read_trace_window(dir / kTraceFile, median_of(steady(steps), [](const auto& m) { return m.step_time_s; }));
    if (window.rows.empty()) return one(missing("trace.json has no spans."));
    // Without a disk tier, bytes on disk are only those of commits.
    if (std::ranges::all_of(steps, [](const auto& m) { return m.nvme_peak_bytes == 0; }))
      std::erase_if(window.counters, [](const auto& counter) { return counter.name == "disk bytes"; });
    return section("Tiers during a step", fmt::format("Bytes reserved in each tier over {}.", format_duration(window.seconds)),
                   tier_chart(window)) +
           one(lane_chart(window));
  } catch (const Error& e) {
    warn(fmt::format("the report has no picture of a step: {}", e.what()));
    return one(missing(escape(e.what())));
  }
}

}  // namespace

fs::path write_report(const fs::path& run_dir) {
  const auto metrics = run_dir / kMetricsFile;
  if (!fs::exists(metrics)) {
    throw Error(fmt::format("{} has no {}\n  a report needs a run with at least one step", run_dir.string(), kMetricsFile),
                Exit::usage);
  }
  const auto steps = read_metrics(metrics);
  if (steps.empty()) throw Error(fmt::format("{} has no step\n  a report needs at least one", metrics.string()), Exit::usage);

  const auto title = name_of_run(run_dir);
  std::uint64_t tokens = 0;
  double time_s = 0;
  for (const auto& m : steps) tokens += m.tokens, time_s += m.step_time_s;

  std::string body = fmt::format("<h1>{}</h1>\n<p class='quiet'>{} step{}, {} tokens, {} of training</p>\n", escape(title),
                                 steps.size(), steps.size() == 1 ? "" : "s", tokens, format_duration(time_s));
  body += warnings_of_run(run_dir);
  body += tiles(steps);
  body += section("Loss", "Mean over target tokens, in nats.", loss_chart(steps));
  body += sources_section(steps);
  body += step_sections(run_dir, steps);
  body += section("Stall by cause", "Time that the compute lane waited, by what it waited for.", stall_chart(steps));
  body += planned_section(run_dir, steps);
  if (const auto config = read_text(run_dir / kConfigFile)) {
    body +=
        fmt::format("<section><details><summary>Configuration</summary><pre>{}</pre></details></section>\n", escape(*config));
  } else {
    body += section("Configuration", "", missing("config.toml is missing."));
  }
  body += "<footer>Made by terrace report from metrics.jsonl, plan.json and trace.json.</footer>\n";

  const auto file = run_dir / kReportFile;
  write_page(file, report_page(title + " · terrace", body), run_dir);
  return file;
}

}  // namespace terrace::cli
