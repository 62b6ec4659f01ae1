#include <terrace/examples/terrace/report/top_frame.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/text_columns.h>
#include <terrace/examples/terrace/run/screen.h>

namespace terrace::cli {
namespace {

constexpr std::size_t kKeyColumns = 10;  // "held-out " and one column more
constexpr std::size_t kLeastFrameColumns = 20;
constexpr std::size_t kLongestSparkline = 60;

std::string_view word_of_state(RunStatus::State state) {
  switch (state) {
    case RunStatus::State::not_there: return "no such directory";
    case RunStatus::State::not_started: return "not started";
    case RunStatus::State::starting: return "starting";
    case RunStatus::State::running: return "running";
    case RunStatus::State::finished: return "finished";
    case RunStatus::State::stopped: return "stopped, no process has it";
    case RunStatus::State::unreadable: return "cannot be read";
  }
  return "";
}

class Frame {
 public:
  explicit Frame(const FrameOptions& options) : options_(options), columns_(std::max(options.columns, kLeastFrameColumns)) {}

  void title(const std::string& name, const std::string& state) {
    const auto whole = fmt::format("{}  {}", name, state);
    if (columns_of(whole) <= columns_) {
      lines_.push_back(options_.color ? fmt::format("\x1b[1m{}\x1b[0m  {}", name, state) : whole);
      return;
    }
    lines_.push_back(options_.color ? fmt::format("\x1b[1m{}\x1b[0m", cut(name, columns_)) : cut(name, columns_));
    lines_.push_back("  " + cut(state, columns_ - 2));
  }

  // Puts the parts side by side as long as there is room, and never divides a part.
  void row(std::string_view key, const std::vector<std::string>& parts) {
    const auto room = columns_ - kKeyColumns;
    auto begin = [&, first = true]() mutable {
      return std::exchange(first, false) ? fmt::format("{:<{}}", key, kKeyColumns) : std::string(kKeyColumns, ' ');
    };
    std::string line;
    std::size_t used = 0;
    for (const auto& whole : parts) {
      if (whole.empty()) continue;
      const auto part = cut(whole, room);
      const auto wide = columns_of(part);
      if (used > 0 && used + 2 + wide > room) {
        lines_.push_back(begin() + line);
        line.clear();
        used = 0;
      }
      line += (used > 0 ? "  " : "") + part;
      used += wide + (used > 0 ? 2 : 0);
    }
    if (used > 0) lines_.push_back(begin() + line);
  }
  void gap() { lines_.emplace_back(); }
  [[nodiscard]] std::size_t room() const { return columns_ - kKeyColumns; }

  [[nodiscard]] std::vector<std::string> finish() && {
    if (options_.rows > 0 && lines_.size() > options_.rows) {
      const auto hidden = lines_.size() - options_.rows + 1;
      lines_.resize(options_.rows - 1);
      lines_.push_back(cut(fmt::format("… {} more lines in a higher terminal", hidden), columns_));
    }
    return std::move(lines_);
  }

 private:
  FrameOptions options_;
  std::size_t columns_;
  std::vector<std::string> lines_;
};

// The mean of a value over the last steps.
template <class Value>
double mean_of(const std::vector<StepMetrics>& steps, const Value& value) {
  double sum = 0;
  for (const auto& m : steps) sum += static_cast<double>(value(m));
  return steps.empty() ? 0 : sum / static_cast<double>(steps.size());
}

double typical_step_time(const std::vector<StepMetrics>& steps) {
  std::vector<double> times;
  for (const auto& m : steps) times.push_back(m.step_time_s);
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  return times[times.size() / 2];
}

void progress(Frame& frame, const RunStatus& run) {
  const auto done = run.recent.back().step;
  const double step_s = typical_step_time(run.recent);
  std::vector<std::string> parts{run.last_step == 0 ? fmt::format("{}", done) : fmt::format("{}/{}", done, run.last_step)};
  if (run.last_step > 0)  // may be less than the steps done, if the run was resumed with fewer
    parts.push_back(
        fmt::format("{:.1f} %", std::min(100.0, 100 * static_cast<double>(done) / static_cast<double>(run.last_step))));
  if (run.state == RunStatus::State::running && run.last_step > done)
    parts.push_back(fmt::format("{} left", format_duration(step_s * static_cast<double>(run.last_step - done))));
  parts.push_back(fmt::format("{} a step", format_duration(step_s)));
  if (run.seconds_since_step) parts.push_back(fmt::format("last one {} ago", format_duration(*run.seconds_since_step)));
  frame.row("step", parts);
}

void losses(Frame& frame, const RunStatus& run) {
  const auto& last = run.recent.back();
  const auto loss = last.loss ? format_number(*last.loss, 5) : "no targets";
  const auto used = columns_of(loss) + 2;
  const auto beside = used < frame.room() ? frame.room() - used : frame.room();  // or on the next line
  frame.row("loss", {loss, sparkline(run.losses, std::min(kLongestSparkline, beside))});
  if (run.eval_loss) frame.row("held-out", {format_number(*run.eval_loss, 5)});
  frame.row("", {fmt::format("gradient norm {}", format_number(last.grad_norm, 4)), fmt::format("rate {:.3g}", last.lr)});
}

void moves(Frame& frame, const RunStatus& run) {
  const auto& steps = run.recent;
  const double step_s = mean_of(steps, [](const auto& m) { return m.step_time_s; });
  struct Edge {
    const char* name;
    std::uint64_t StepMetrics::*bytes;
  };
  static constexpr std::array<Edge, 4> kEdges{{{"disk→host", &StepMetrics::read_bytes},
                                               {"host→disk", &StepMetrics::write_bytes},
                                               {"host→dev", &StepMetrics::h2d_bytes},
                                               {"dev→host", &StepMetrics::d2h_bytes}}};
  std::vector<std::string> parts;
  for (const auto& edge : kEdges) {
    const double bytes = mean_of(steps, [&](const auto& m) { return m.*edge.bytes; });
    const double rate = step_s > 0 ? bytes / step_s : 0;
    parts.push_back(fmt::format("{} {}, {}/s", edge.name, format_bytes(static_cast<std::uint64_t>(bytes)),
                                format_bytes(static_cast<std::uint64_t>(rate))));
  }
  frame.row("a step", parts);
}

void stalls(Frame& frame, const RunStatus& run) {
  const double step_s = mean_of(run.recent, [](const auto& m) { return m.step_time_s; });
  std::map<std::string, double> causes;
  for (const auto& m : run.recent)
    for (const auto& [cause, seconds] : m.stall) causes[cause] += seconds / static_cast<double>(run.recent.size());
  const auto percent = [&](double seconds) { return fmt::format("{:.1f} %", step_s > 0 ? 100 * seconds / step_s : 0); };
  std::vector<std::string> parts{percent(mean_of(run.recent, [](const auto& m) { return m.stall_s; }))};
  for (const auto& [cause, seconds] : causes)
    if (seconds > 0) parts.push_back(fmt::format("{} {}", base::printable(cause), percent(seconds)));
  frame.row("stall", parts);
}

void budgets(Frame& frame, const RunStatus& run) {
  const auto& last = run.recent.back();
  const std::array<std::uint64_t, 3> peaks{last.device_peak_bytes, last.host_peak_bytes, last.nvme_peak_bytes};
  static constexpr std::array<const char*, 3> kNames{"device", "host", "disk"};
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    auto part = fmt::format("{} {}", kNames[i], format_bytes(peaks[i]));
    try {
      if (const auto budget = parse_bytes(run.budgets[i]); budget != kUnlimited && budget > 0)
        part += fmt::format(" of {} ({:.0f} %)", format_bytes(budget),
                            100 * static_cast<double>(peaks[i]) / static_cast<double>(budget));
    } catch (const Error&) {  // "auto": the run resolved it
    }
    parts.push_back(part);
  }
  frame.row("peaks", parts);
}

void last_commit(Frame& frame, const RunStatus& run) {
  frame.row("commit", {run.commit ? fmt::format("after step {}", *run.commit) : "none yet",
                       run.seconds_since_commit ? fmt::format("{} ago", format_duration(*run.seconds_since_commit)) : "",
                       run.commit_s > 0 ? fmt::format("{:.2f} % of the time", 100 * run.commit_s / run.total_s) : ""});
}

}  // namespace

std::string sparkline(std::span<const double> values, std::size_t cells) {
  static constexpr std::array<const char*, 8> kHeights{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  cells = std::min(cells, values.size());
  std::vector<double> means;
  for (std::size_t i = 0; i < cells; ++i) {
    const auto begin = i * values.size() / cells, end = (i + 1) * values.size() / cells;
    double sum = 0;
    for (auto j = begin; j < end; ++j) sum += values[j];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double low = INFINITY, high = -INFINITY;
  for (const double m : means)
    if (std::isfinite(m)) low = std::min(low, m), high = std::max(high, m);
  std::string out;
  for (const double m : means) {
    const double height = high > low ? (m - low) / (high - low) : 0;
    out += std::isfinite(m) ? kHeights[static_cast<std::size_t>(std::lround(height * 7))] : " ";
  }
  return out;
}

std::vector<std::string> top_frame(std::span<const RunStatus> runs, const FrameOptions& options) {
  Frame frame(options);
  for (const auto& run : runs) {
    if (&run != &runs.front()) frame.gap();
    std::string state(word_of_state(run.state));
    if (run.pid != 0) state += fmt::format(" (process {})", run.pid);
    frame.title(base::printable(run.name), state);
    if (!run.problem.empty()) frame.row("problem", {base::printable(run.problem, 1000)});
    if (!run.recent.empty()) {
      progress(frame, run);
      losses(frame, run);
      const auto& last = run.recent.back();
      frame.row("tokens/s", {format_number(mean_of(run.recent, [](const auto& m) { return m.tokens_per_s; }), 5),
                             fmt::format("{} a step", last.tokens)});
      moves(frame, run);
      stalls(frame, run);
      budgets(frame, run);
    }
    if (!run.recent.empty() || run.commit) last_commit(frame, run);
  }
  return std::move(frame).finish();
}

}  // namespace terrace::cli
