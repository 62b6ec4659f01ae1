#include <terrace/examples/terrace/stop_signal.h>

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace terrace::cli {
namespace {

// A handler can reach nothing else, and ranks that are threads read it, too.
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
  for (const int s : {SIGINT, SIGTERM}) std::signal(s, stop);
  if (std::signal(SIGHUP, stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
}

int stop_signal() { return last; }

}  // namespace terrace::cli
