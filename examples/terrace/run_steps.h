// The steps of a run as pages show them. A run makes its report in its own process, beside its budgets, so metrics.jsonl is
// read as a stream, and of any number of steps a bounded number of points is kept.
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

#include <terrace/examples/terrace/metrics.h>

namespace terrace::cli {

// Lines that follow each other, as the page shows them: one, or in a long run the mean of several.
struct StepPoint {
  std::uint64_t first = 0;  // step; that of `mean` is the last one
  std::uint64_t lines = 0;  // without gaps, last − first + 1
  // How many lines have a finite loss. mean.loss is the mean of these: NaN if all losses are not finite, absent without any.
  std::uint64_t finite = 0;
  StepMetrics mean;  // without maps of sources, and with the peaks of its last line

  [[nodiscard]] double middle() const { return (static_cast<double>(first) + static_cast<double>(mean.step)) / 2; }
};

std::string name_of_steps(std::uint64_t first, std::uint64_t last);  // "step 7", "steps 7 to 10"

struct RunSteps {
  static constexpr std::size_t kMostPoints = 2048;

  // Of some lines.
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
  std::map<std::string, double> held_out;       // of the last evaluation that tells its sources
  std::vector<StepPoint> points;                // at most kMostPoints, each of as many lines as the others but the last one

  void add(const StepMetrics& line, std::uint64_t walked_lines);
  [[nodiscard]] const Sums& steady() const { return count > 2 ? without_first : all; }
  // Of a step, without the first one: of all points, which in a long run are means.
  [[nodiscard]] double median(const std::function<double(const StepMetrics&)>& value) const;

 private:
  std::uint64_t lines_a_point_ = 1;
};

// `walked_lines`: how many first lines RunSteps::walked has. A file that does not exist has none.
RunSteps read_run_steps(const std::filesystem::path& metrics, std::uint64_t walked_lines = 0);

}  // namespace terrace::cli
