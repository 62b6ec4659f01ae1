// The steps of a run as pages show them. A run makes its report in its own process, where it must stay within its budgets:
// metrics.jsonl is read as a stream, and at most kMostPoints points are kept.
//
// Threads: any. Errors: those of each_step().
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/terrace/metrics/metrics.h>

namespace terrace::cli {

// Consecutive lines as the page shows them: one line, or in a long run the mean of several.
struct StepPoint {
  std::uint64_t first = 0;  // the first step; mean.step is the last one
  std::uint64_t lines = 0;  // how many; without gaps, last − first + 1
  // How many lines have a finite loss. mean.loss is the mean of these: NaN if no loss is finite, absent if no line has a loss.
  std::uint64_t finite = 0;
  StepMetrics mean;  // without the maps by source; its peaks are those of its last line

  [[nodiscard]] double middle() const { return (static_cast<double>(first) + static_cast<double>(mean.step)) / 2; }
};

std::string name_of_steps(std::uint64_t first, std::uint64_t last);  // "step 7", "steps 7 to 10"

struct RunSteps {
  static constexpr std::size_t kMostPoints = 2048;

  // Sums over some lines.
  struct Sums {
    double time_s = 0, stall_s = 0, commit_s = 0;
  };

  std::uint64_t count = 0, tokens = 0, without_targets = 0;
  Sums all, without_first;  // the first step warms everything up
  StepMetrics last;
  std::array<std::uint64_t, 3> peaks = {};  // device, host, disk
  StepMetrics walked;                       // its bytes are the sums of the first `walked_lines`
  std::optional<double> last_loss;          // of the last step that had targets
  std::uint64_t last_loss_step = 0;
  std::optional<double> last_eval, least_eval;  // held-out losses
  std::map<std::string, double> held_out;       // of the last evaluation that names its sources
  std::vector<StepPoint> points;                // at most kMostPoints; all have equally many lines, except the last one

  void add(const StepMetrics& line, std::uint64_t walked_lines);
  [[nodiscard]] const Sums& steady() const { return count > 2 ? without_first : all; }
  // The median over the steps without the first one; in a long run, over the points, which are means.
  [[nodiscard]] double median(const std::function<double(const StepMetrics&)>& value) const;

 private:
  std::uint64_t lines_a_point_ = 1;
};

// `walked_lines`: how many of the first lines RunSteps::walked adds up. A file that does not exist has no lines.
RunSteps read_run_steps(const std::filesystem::path& metrics, std::uint64_t walked_lines = 0);

}  // namespace terrace::cli
