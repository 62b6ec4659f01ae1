#include <terrace/examples/terrace/report/report.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/refused.h>
#include <terrace/core/base/text_file.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/run_name.h>
#include <terrace/examples/terrace/base/sealed_json.h>
#include <terrace/examples/terrace/base/svg.h>
#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/report/report_about.h>
#include <terrace/examples/terrace/report/report_charts.h>
#include <terrace/examples/terrace/report/report_template.h>
#include <terrace/examples/terrace/report/run_steps.h>
#include <terrace/examples/terrace/run/run_dir.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::optional<std::string> text_of_file(const fs::path& file) {
  try {
    return read_text_file(file);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Reads a file that need not exist.
json sealed_in(const fs::path& file) try {
  return fs::exists(file) ? parse_sealed(read_text_file(file)) : json();
} catch (const Error& error) {
  throw Error(fmt::format("{} is damaged: {}", file.string(), error.what()));
}

std::string section(const std::string& title, const std::string& about, const std::string& content) {
  return fmt::format("<section>\n<h2>{}</h2>\n<p class='quiet'>{}</p>\n{}\n</section>\n", title, about, content);
}

std::string missing(const std::string& what) { return fmt::format("<p class='quiet missing'>{}</p>", what); }

double number(const json& object, const std::vector<const char*>& path) {
  const json* at = &object;
  for (const auto* const key : path) {
    if (!at->is_object() || !at->contains(key)) return NAN;
    at = &at->at(key);
  }
  return at->is_number() ? at->get<double>() : NAN;
}

// The peaks of device, host and disk. The result of a finished run has those of the whole run with its last commit, like the
// plan.
std::array<std::uint64_t, 3> peaks_of(const json& result, const RunSteps& steps) {
  auto peaks = steps.peaks;
  std::size_t tier = 0;
  for (const auto* const key : {"device", "host", "nvme"}) {
    if (const double finished = number(result, {"peak_bytes", key}); finished >= 0 && finished < 1e18)
      peaks[tier] = static_cast<std::uint64_t>(finished);
    ++tier;
  }
  return peaks;
}

std::string tiles(const RunSteps& steps, const std::array<std::uint64_t, 3>& peaks) {
  const auto& [device, host, disk] = peaks;
  const auto& steady = steps.steady();
  std::string out = "<div class='tiles'>\n";
  const auto tile = [&](const std::string& value, const std::string& name) {
    out += fmt::format("<div class='tile'><b>{}</b><span>{}</span></div>\n", escape(value), name);
  };
  if (steps.last_loss) tile(format_number(*steps.last_loss, 5), fmt::format("training loss, step {}", steps.last_loss_step));
  if (steps.without_targets > 0) tile(fmt::format("{}", steps.without_targets), "steps without targets");
  if (steps.last_eval) tile(format_number(*steps.last_eval, 5), "held-out loss");
  tile(format_duration(steps.median([](const auto& m) { return m.step_time_s; })), "a step (median)");
  tile(format_number(steps.median([](const auto& m) { return m.tokens_per_s; }), 4), "tokens a second");
  tile(fmt::format("{:.1f} %", steady.time_s > 0 ? 100 * steady.stall_s / steady.time_s : 0), "stalled");
  tile(format_bytes(device), "device peak");
  tile(format_bytes(host), "host peak");
  tile(disk ? format_bytes(disk) : "none", "disk peak");
  return out + "</div>\n";
}

std::uint64_t walked_steps(const json& plan) {
  const double steps = number(plan, {"walked", "steps"});
  return steps >= 1 && steps < 1e9 ? static_cast<std::uint64_t>(steps) : 0;
}

std::string planned_table(const json& plan, const std::array<std::uint64_t, 3>& peaks, const RunSteps& steps) {
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
  const auto typical = [&](auto member) { return steps.median([member](const StepMetrics& m) { return m.*member; }); };
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
  const auto walked = walked_steps(plan);
  const auto moved = [&](const std::string& name, const char* key, auto member) {
    // The metrics of a step count the bytes of all ranks.
    const double all =
        plan.contains("ranks") ? number(plan, {"ranks", "walked_bytes", key}) : number(plan, {"walked", "bytes", key});
    row(fmt::format("{}, {} steps", name, walked), walked <= steps.count ? all : NAN, static_cast<double>(steps.walked.*member),
        bytes, true);
  };
  moved("read from disk", "read", &StepMetrics::read_bytes);
  moved("written to disk", "write", &StepMetrics::write_bytes);
  moved("host to device", "h2d", &StepMetrics::h2d_bytes);
  moved("device to host", "d2h", &StepMetrics::d2h_bytes);
  const auto peak = [&](const std::string& name, const char* key, std::uint64_t measured) {
    const double of_rank = number(plan, {"peak_bytes", key}), of_ranks = number(plan, {"ranks", "peak_bytes", key});
    row(name, std::isfinite(of_ranks) ? of_ranks : of_rank, static_cast<double>(measured), bytes, true);
  };
  peak("device peak", "device", peaks[0]);
  peak("host peak", "host", peaks[1]);
  peak("disk peak", "nvme", peaks[2]);
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

// The plan, or why there is none.
struct PlanFile {
  json plan;
  std::string missing;
};
PlanFile read_plan(const fs::path& dir) try {
  if (!fs::exists(dir / kPlanFile)) return {{}, "plan.json is missing, so nothing can be compared."};
  return {sealed_in(dir / kPlanFile), ""};
} catch (const Error& e) {
  base::warn(fmt::format("the report compares nothing with the plan: {}", e.what()));
  return {{}, fmt::format("{}.", e.what())};
}

// The warnings about its data that the run gave when it began.
std::string warnings_of_run(const json& plan) try {
  std::string out;
  for (const auto& warning : plan.value("warnings", json::array()))
    out += missing("Warning: " + escape(warning.get<std::string>()) + ".");
  return out;
} catch (const json::exception&) {  // there is no plan, or it is not as a run writes it
  return {};
}

// Null: the run is not finished, or its result cannot be read.
json result_of(const fs::path& dir) try { return sealed_in(dir / kResultFile); } catch (const Error& e) {
  base::warn(fmt::format("the report has the peaks of the steps only: {}", e.what()));
  return {};
}

std::string planned_section(const PlanFile& file, const std::array<std::uint64_t, 3>& peaks, const RunSteps& steps) {
  const auto content = file.missing.empty() ? planned_table(file.plan, peaks, steps) : missing(escape(file.missing));
  return section("Planned beside measured", "Times of a step (the run's median), bytes moved, and the greatest value of peaks.",
                 content);
}

// For data with several sources: how often each has been trained on, and its loss in the last evaluation.
std::string sources_section(const RunSteps& steps) {
  const auto &epochs = steps.last.epochs, &held_out = steps.held_out;
  if (epochs.empty()) return {};
  std::string rows;
  for (const auto& [source, times] : epochs)
    rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(source), format_number(times, 4),
                        held_out.contains(source) ? format_number(held_out.at(source), 5) : "–");
  return section("Sources of the data", "How often each has been trained on, and its held-out loss in the last evaluation.",
                 fmt::format("<div class='scroll'><table>\n<tr><th></th><th>epochs</th><th>held-out loss</th></tr>\n{}</table>"
                             "</div>",
                             rows));
}

std::string step_sections(const fs::path& dir, const RunSteps& steps) {
  const auto one = [](const std::string& content) {
    return section("One step, lane by lane", "What ran when, and how busy each lane was.", content);
  };
  if (!fs::exists(dir / kTraceFile)) return one(missing("trace.json is missing, so no step can be drawn."));
  try {
    auto window = read_trace_window(dir / kTraceFile, steps.median([](const auto& m) { return m.step_time_s; }));
    if (window.rows.empty()) return one(missing("trace.json has no spans."));
    // Without a disk tier, bytes on disk are only those of commits.
    if (steps.peaks[2] == 0) std::erase_if(window.counters, [](const auto& counter) { return counter.name == "disk bytes"; });
    return section("Tiers during a step", fmt::format("Bytes reserved in each tier over {}.", format_duration(window.seconds)),
                   tier_chart(window)) +
           one(lane_chart(window));
  } catch (const Error& e) {
    base::warn(fmt::format("the report has no picture of a step: {}", e.what()));
    return one(missing(escape(e.what())));
  }
}

}  // namespace

fs::path write_report(const fs::path& run_dir) {
  const auto metrics = run_dir / kMetricsFile;
  if (!fs::exists(metrics)) {
    throw base::Refused(
        fmt::format("{} has no {}\n  a report needs a run with at least one step", run_dir.string(), kMetricsFile));
  }
  const auto plan = read_plan(run_dir);
  const auto steps = read_run_steps(metrics, walked_steps(plan.plan));
  if (steps.count == 0) throw base::Refused(fmt::format("{} has no step\n  a report needs at least one", metrics.string()));

  const auto title = name_of_run(run_dir);
  std::string body = fmt::format("<h1>{}</h1>\n<p class='quiet'>{} step{}, {} tokens, {} of training</p>\n", escape(title),
                                 steps.count, steps.count == 1 ? "" : "s", steps.tokens, format_duration(steps.all.time_s));
  body += warnings_of_run(plan.plan);
  const auto peaks = peaks_of(result_of(run_dir), steps);
  body += tiles(steps, peaks);
  body += about_run(run_dir, plan.plan, steps);
  body += section("Loss", "Mean over target tokens, in nats.", loss_chart(steps.points));
  body += section("Learning rate, gradient and speed", "Of each step; the gradient's norm before clipping.",
                  number_chart(steps.points, "learning rate", &StepMetrics::lr) +
                      number_chart(steps.points, "gradient norm", &StepMetrics::grad_norm) +
                      number_chart(steps.points, "tokens a second", &StepMetrics::tokens_per_s));
  body += sources_section(steps);
  body += step_sections(run_dir, steps);
  body += section("Stall by cause", "Time that the compute lane waited, by what it waited for.", stall_chart(steps.points));
  body += planned_section(plan, peaks, steps);
  if (const auto config = text_of_file(run_dir / kConfigFile)) {
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
