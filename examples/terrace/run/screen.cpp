#include <terrace/examples/terrace/run/screen.h>

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/core/base/printable.h>
#include <terrace/core/base/units.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/base/text_columns.h>
#include <terrace/examples/terrace/config/setting_flags.h>

namespace terrace::cli {
namespace {

constexpr std::uint64_t kHeaderEvery = 20;
constexpr std::size_t kRecent = 16;  // steps from which the time left is computed

struct Column {
  const char* name;
  std::size_t width;
};
// In order of importance, because a narrow terminal loses columns from the right.
constexpr std::array<Column, 10> kColumns{{{"step", 13},
                                           {"loss", 11},
                                           {"grad norm", 11},
                                           {"lr", 9},
                                           {"step time", 10},
                                           {"tokens/s", 9},
                                           {"read", 9},
                                           {"written", 9},
                                           {"stall", 6},
                                           {"left", 8}}};

constexpr std::size_t kColumnGap = 2;  // between columns

// If not even the columns of step and loss fit, prints both without padding, and the step without the last step's number if
// need be.
std::string join_two(const std::string& step, const std::string& loss, std::size_t width) {
  const auto whole = step.size() + 1 + loss.size() <= width ? step : step.substr(0, step.find('/'));
  const auto room = width > whole.size() ? width - whole.size() : 0;
  return cut(fmt::format("{}{:>{}}", whole, loss, room), width);
}

// As many columns as fit into the width; all of them for a width of 0.
std::string join_columns(const std::array<std::string, kColumns.size()>& cells, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto cell = fmt::format("{:>{}}{:>{}}", "", i > 0 ? kColumnGap : 0, cells[i], kColumns[i].width);
    if (width > 0 && out.size() + cell.size() > width) return i < 2 ? join_two(cells[0], cells[1], width) : out;
    out += cell;
  }
  return out;
}

// A number below a step's line, behind the first column if there is room. If there is not enough, its name is cut, not the
// number.
std::string below_step(const std::string& name, const std::string& number, std::size_t width) {
  const auto indent = kColumns[0].width + kColumnGap;
  if (width == 0) return fmt::format("{:>{}}{} {}", "", indent, name, number);
  const auto room = width > number.size() + 1 ? width - number.size() - 1 : 1;
  const auto shown = cut(name, room);
  return fmt::format("{:>{}}{} {}", "", std::min(indent, room - columns_of(shown)), shown, number);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 0.9995) return fmt::format("{:.0f}ms", seconds * 1e3);
  if (seconds < 9.995) return fmt::format("{:.2f}s", seconds);
  if (seconds < 59.95) return fmt::format("{:.1f}s", seconds);
  if (seconds > 8.64e8) return "years";  // too wide for the column
  const auto s = static_cast<std::uint64_t>(std::llround(seconds));
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 360000) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86400, s / 3600 % 24);
}

std::string format_number(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-4 || size >= 1e6)) return fmt::format("{:.{}e}", value, std::max(digits - 3, 0));
  const int whole = size < 1 ? 1 : static_cast<int>(std::floor(std::log10(size))) + 1;
  return fmt::format("{:.{}f}", value, std::max(digits - whole, 0));
}

ScreenOptions screen_options(bool json, std::uint64_t first_step, std::uint64_t last_step) {
  ScreenOptions options;
  options.json = json;
  options.first_step = first_step;
  options.last_step = last_step;
  const char* const term = std::getenv("TERM");
  const bool dumb = !term || std::string_view(term) == "dumb";
  options.terminal = !json && !dumb && output_is_terminal();
  const char* const no_color = std::getenv("NO_COLOR");
  options.color = options.terminal && !(no_color && *no_color);
  winsize size{};
  if (options.terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) options.width = size.ws_col;
  return options;
}

Screen::Screen(const ScreenOptions& options) : options_(options), step_(options.first_step) {}

Screen::~Screen() {
  erase_bar();
  std::fflush(options_.out);
}

void Screen::step(const StepMetrics& m) {
  step_ = m.step;
  recent_s_.push_back(m.step_time_s);
  if (recent_s_.size() > kRecent) recent_s_.pop_front();
  if (options_.json) {
    object(to_json(m));
    return;
  }
  erase_bar();
  if (lines_ == 0 || (options_.terminal && lines_ % kHeaderEvery == 0)) header();
  ++lines_;
  const double share = m.step_time_s > 0 ? std::min(1.0, m.stall_s / m.step_time_s) : 0;
  const auto line =
      join_columns({fmt::format("{}/{}", m.step, options_.last_step), m.loss ? format_number(*m.loss, 6) : "no targets",
                    format_number(m.grad_norm, 5), fmt::format("{:.2e}", m.lr), format_duration(m.step_time_s),
                    format_number(m.tokens_per_s, 4), format_bytes(m.read_bytes), format_bytes(m.write_bytes),
                    fmt::format("{:.1f}%", share * 100), format_duration(seconds_left())},
                   width());
  base::say(options_.out, fmt::format("{}\n", line));
  if (m.eval_loss) base::say(options_.out, below_step("held-out loss", format_number(*m.eval_loss, 6), width()) + "\n");
  for (const auto& [source, loss] : m.held_out)
    base::say(options_.out, below_step("  of " + base::printable(source), format_number(loss, 6), width()) + "\n");
  draw_bar();
  std::fflush(options_.out);
}

void Screen::note(std::string_view text) {
  auto* const to = options_.json ? options_.notes : options_.out;
  erase_bar();
  base::say(to, fmt::format("{}\n", base::printable_lines(text)));
  draw_bar();
  std::fflush(to);
}

void Screen::warn(std::string_view text) {
  erase_bar();
  std::fflush(options_.out);
  base::say(options_.notes, fmt::format("warning: {}\n", base::printable_lines(with_flags(text))));
  std::fflush(options_.notes);
  draw_bar();
}

void Screen::object(const nlohmann::json& object) {
  if (!options_.json) return;
  // A path that is not UTF-8 must not end the run.
  base::say(options_.out, fmt::format("{}\n", object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)));
  std::fflush(options_.out);
}

void Screen::finish(const std::string& weights_hash, nlohmann::json final_object) {
  erase_bar();
  recent_s_.clear();
  if (options_.json) {
    final_object["weights_xxh64"] = weights_hash;
    object(final_object);
  } else {
    base::say(options_.out, fmt::format("weights xxh64 {}\n", weights_hash));
    std::fflush(options_.out);
  }
}

void Screen::header() {
  std::array<std::string, kColumns.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kColumns[i].name;
  const auto line = join_columns(names, width());
  base::say(options_.out, fmt::format("{}{}{}\n", options_.color ? "\x1b[2m" : "", line, options_.color ? "\x1b[0m" : ""));
}

void Screen::erase_bar() {
  if (!bar_drawn_) return;
  base::say(options_.out, options_.color ? "\r\x1b[K" : '\r' + std::string(bar_columns(), ' ') + '\r');
  bar_drawn_ = false;
}

// One column stays free: a full line would wrap, and could not be erased.
std::size_t Screen::bar_columns() const {
  return static_cast<std::size_t>(std::clamp(options_.width > 0 ? options_.width - 1 : 79, 0, 100));
}

void Screen::draw_bar() {
  if (!options_.terminal || options_.last_step <= options_.first_step || step_ >= options_.last_step || recent_s_.empty())
    return;
  const double done = static_cast<double>(step_) / static_cast<double>(options_.last_step);
  const auto text = fmt::format(" {:3.0f}%  {} left", std::floor(done * 100), format_duration(seconds_left()));
  const int cells = static_cast<int>(bar_columns()) - static_cast<int>(text.size());
  if (cells < 5) return;
  const auto eighths = static_cast<std::size_t>(done * cells * 8);
  static constexpr std::array<const char*, 8> kPart{"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string bar;
  for (std::size_t i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kPart[eighths % 8];
  const auto drawn = eighths / 8 + (eighths % 8 ? 1 : 0);
  std::string rest;
  for (std::size_t i = drawn; i < static_cast<std::size_t>(cells); ++i) rest += "·";
  const char* const on = options_.color ? "\x1b[36m" : "";
  const char* const dim = options_.color ? "\x1b[2m" : "";
  const char* const off = options_.color ? "\x1b[0m" : "";
  base::say(options_.out, fmt::format("{}{}{}{}{}{}{}", on, bar, off, dim, rest, off, text));
  std::fflush(options_.out);
  bar_drawn_ = true;
}

double Screen::seconds_left() const {
  if (recent_s_.empty() || options_.last_step <= step_) return 0;
  std::vector<double> sorted(recent_s_.begin(), recent_s_.end());
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2));
  return sorted[sorted.size() / 2] * static_cast<double>(options_.last_step - step_);
}

}  // namespace terrace::cli
