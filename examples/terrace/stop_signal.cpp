#include <terrace/examples/terrace/stop_signal.h>

#include <csignal>
#include <initializer_list>

namespace terrace::cli {
namespace {

volatile std::sig_atomic_t last = 0, count = 0;  // a handler can reach nothing else

}  // namespace

void catch_stop_signals() {
  const auto stop = [](int caught) {
    last = caught;
    count = count + 1;
    if (count == 2) std::signal(caught, SIG_DFL);
  };
  last = 0;
  count = 0;
  for (const int s : {SIGINT, SIGTERM}) std::signal(s, stop);
  if (std::signal(SIGHUP, stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup
}

int stop_signal() { return last; }

}  // namespace terrace::cli
