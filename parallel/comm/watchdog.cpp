#include <terrace/parallel/comm/watchdog.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/core/notice.h>
#include <terrace/parallel/comm/wait_clock.h>

namespace terrace {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 200ms;  // far less than a WaitClock takes for a pause of the process
constexpr auto kLeastOfMpi = 10s;

}  // namespace

Watchdog::Watchdog(std::chrono::milliseconds limit, std::function<void()> late) {
  try {
    thread_ = std::thread([this, limit, late = std::move(late)] { wait(limit, late); });
  } catch (const std::system_error&) {  // the system gives no thread: the wait has no limit
  }
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    in_time_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::wait(std::chrono::milliseconds limit, const std::function<void()>& late) {
  WaitClock clock;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::min<std::chrono::milliseconds>(kLook, limit), [this] { return in_time_; }))
    if (WaitClock::Clock::now() - clock.since() >= limit) return late();
}

std::chrono::milliseconds limit_of_mpi(std::chrono::milliseconds time_limit) {
  return std::max<std::chrono::milliseconds>(time_limit, kLeastOfMpi);
}

std::string describe_wait_in_mpi(const std::string& who, const std::string& where, std::chrono::milliseconds time_limit) {
  return fmt::format(
      "{} waited {} s for other ranks in {}\n  one of them is stopped (SIGSTOP, a debugger), hangs, or was never started: look "
      "at the processes of this job",
      who, std::chrono::duration<double>(limit_of_mpi(time_limit)).count(), where);
}

void end_process(const std::string& error) {
  say(stderr, "error: " + error + "\n");
  ::_exit(static_cast<int>(Exit::runtime));
}

}  // namespace terrace
