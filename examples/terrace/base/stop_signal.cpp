#include <terrace/examples/terrace/base/stop_signal.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <fmt/format.h>

#include <terrace/examples/terrace/base/launched.h>

namespace terrace::cli {
namespace {

// A signal handler can reach only globals, and ranks that are threads read them, too.
std::atomic<int> last{0}, count{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not wait");

}  // namespace

void catch_stop_signals() {
  const auto stop = [](int caught) {
    last = caught;
    if (++count == 2) std::signal(caught, SIG_DFL);
  };
  last = 0;
  count = 0;
  for (const int s : {SIGINT, SIGTERM, SIGUSR2}) std::signal(s, stop);
  if (std::signal(SIGHUP, stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // stays ignored under nohup
}

int stop_signal() { return last; }

std::string describe_stop(int signal) {
  if (signal == SIGUSR2 && std::getenv(kUnderLaunch)) return "terrace launch";
  const char* const name = ::sigabbrev_np(signal);
  return fmt::format("signal {} (SIG{})", signal, name ? name : "?");
}

}  // namespace terrace::cli
