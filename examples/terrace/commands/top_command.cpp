// terrace top RUN…: looks at runs once a second, until Ctrl-C. Without a terminal, or with --once, it prints one frame.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <terrace/core/base/notice.h>
#include <terrace/examples/terrace/base/launched.h>
#include <terrace/examples/terrace/base/stop_signal.h>
#include <terrace/examples/terrace/commands/commands.h>
#include <terrace/examples/terrace/config/parse_words.h>
#include <terrace/examples/terrace/report/run_status.h>
#include <terrace/examples/terrace/report/top_frame.h>

namespace terrace::cli {
namespace {

// A separate screen of the terminal without a cursor; the terminal is as before when this object ends.
class TerminalScreen {
 public:
  TerminalScreen() { base::say(stdout, "\x1b[?1049h\x1b[?25l"); }
  ~TerminalScreen() { base::say(stdout, "\x1b[?25h\x1b[?1049l"), std::fflush(stdout); }
  TerminalScreen(const TerminalScreen&) = delete;
  TerminalScreen& operator=(const TerminalScreen&) = delete;

  // Writes all lines at once over the last picture, so that it does not flicker.
  static void draw(const std::vector<std::string>& lines) {
    std::string out = "\x1b[H";
    for (std::size_t i = 0; i < lines.size(); ++i) out += (i > 0 ? "\r\n" : "") + lines[i] + "\x1b[K";
    base::say(stdout, out + "\x1b[J");
    std::fflush(stdout);
  }
};

FrameOptions size_of_terminal(bool color) {
  winsize size{};
  ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
  return {.columns = size.ws_col > 0 ? size.ws_col : std::size_t{80}, .rows = size.ws_row, .color = color};
}

std::vector<RunStatus> look_at(std::vector<RunWatcher>& watchers) {
  std::vector<RunStatus> runs;
  for (auto& watcher : watchers) runs.push_back(watcher.look());
  return runs;
}

Exit run_top(const CommandLine& line) {
  std::vector<RunWatcher> watchers;
  for (const auto& run : line.positional) watchers.emplace_back(run);
  if (line.once || !output_is_terminal()) {
    const auto runs = look_at(watchers);
    for (const auto& text : top_frame(runs, {})) base::say(stdout, text + "\n");
    // On a screen, a missing run may still appear.
    const bool all_there = std::ranges::none_of(runs, [](const auto& r) { return r.state == RunStatus::State::not_there; });
    return all_there ? Exit::ok : Exit::usage;
  }
  const char* const kind = std::getenv("TERM");
  const bool color = !std::getenv("NO_COLOR") && kind && std::string_view(kind) != "dumb";
  catch_stop_signals();
  const TerminalScreen screen;
  while (stop_signal() == 0) {
    TerminalScreen::draw(top_frame(look_at(watchers), size_of_terminal(color)));
    timespec second{1, 0};
    ::nanosleep(&second, nullptr);  // a signal ends it early
  }
  return Exit::ok;
}

void add_top_options(CLI::App& sub, CommandLine& out) {
  sub.add_flag("--once", out.once, "print one frame; so does an output that is not a terminal");
}

void check_top(const CommandLine& line) {
  if (line.positional.empty()) refuse("top needs a run directory", line.command);
}

}  // namespace

Command top_command() {
  return {.name = "top",
          .help = "watch runs in a terminal while they train",
          .positional = "RUN...",
          .examples = {"terrace top runs/mine", "terrace top runs/one runs/other --once"},
          .add_options = add_top_options,
          .check = check_top,
          .run = run_top};
}

}  // namespace terrace::cli
