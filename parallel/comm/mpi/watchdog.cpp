#include <terrace/parallel/comm/mpi/watchdog.h>

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/notice.h>
#include <terrace/parallel/comm/mpi/stopped_ranks.h>
#include <terrace/parallel/comm/wait_clock.h>

namespace terrace::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kLook = 200ms;  // far shorter than a gap that a WaitClock takes for a pause of the process
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

std::string describe_wait_in_mpi(const std::string& where, std::chrono::milliseconds time_limit) {
  using Seconds = std::chrono::duration<double>;
  const auto stopped = stopped_ranks();
  return fmt::format(
      "{}: waited {} s for other ranks in {}\n  {}\n  start all ranks again, with `resume` auto to go on from the last commit; "
      "`rank-deadline` is how long they wait, in calls of MPI itself at least {} s",
      own_rank(), Seconds(limit_of_mpi(time_limit)).count(), where,
      !stopped.empty() ? "stopped by SIGSTOP or a debugger: " + stopped
                       : "one of them is stopped (SIGSTOP, a debugger), hangs, or was never started: look at the processes of "
                         "this job",
      Seconds(kLeastOfMpi).count());
}

void end_process(const std::string& error, int code) {
  base::say(stderr, "error: " + error + "\n");
  ::_exit(code);
}

}  // namespace terrace::comm
