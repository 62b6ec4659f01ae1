#include <terrace/examples/terrace/base/commit_signal.h>

#include <atomic>
#include <csignal>

namespace terrace::cli {
namespace {

std::atomic<bool> asked{false};  // a signal handler can reach only globals
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler must not wait");

}  // namespace

void remember_commit_requests() {
  std::signal(SIGUSR1, [](int) { asked = true; });
}

bool take_commit_request() { return asked.exchange(false); }

}  // namespace terrace::cli
