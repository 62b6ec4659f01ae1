// The output of a run: one line for each step in fixed columns, and a progress bar on a terminal; or only JSON objects.
//
// Owner:   the trainer. Threads: one. Errors: none; a closed terminal does not stop a run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <terrace/examples/terrace/metrics/metrics.h>

namespace terrace::cli {

struct ScreenOptions {
  bool json = false;
  bool terminal = false;                        // header repeated, progress bar
  bool color = false;                           // colour and other escape codes
  int width = 0;                                // 0: no limit
  std::uint64_t first_step = 0, last_step = 0;  // the steps done before, and the last one
  std::FILE* out = stdout;                      // the run's lines
  std::FILE* notes = stderr;                    // notes if `out` gets only JSON
};
// The options of this process: whether its output is a terminal, how wide that is, NO_COLOR, TERM.
ScreenOptions screen_options(bool json, std::uint64_t first_step, std::uint64_t last_step);

class Screen {
 public:
  explicit Screen(const ScreenOptions& options);
  ~Screen();  // erases the bar
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void step(const StepMetrics& metrics);
  void note(std::string_view text);           // a line between the steps
  void warn(std::string_view text);           // "warning: …", on standard error
  void object(const nlohmann::json& object);  // printed with --json only
  // The last line of a run: `weights xxh64 <16 hex digits>`, or the final object with the key weights_xxh64 added.
  void finish(const std::string& weights_hash, nlohmann::json final_object);

 private:
  void erase_bar();
  void draw_bar();
  [[nodiscard]] std::size_t bar_columns() const;
  [[nodiscard]] std::size_t width() const { return static_cast<std::size_t>(std::max(0, options_.width)); }
  void header();
  [[nodiscard]] double seconds_left() const;

  ScreenOptions options_;
  std::uint64_t step_, lines_ = 0;
  std::deque<double> recent_s_;  // the last steps' times, for the time left
  bool bar_drawn_ = false;
};

std::string format_duration(double seconds);          // "4m07s", "1h02m", "12.3s", "850ms"
std::string format_number(double value, int digits);  // at most `digits` significant digits, never wider than digits + 6

}  // namespace terrace::cli
