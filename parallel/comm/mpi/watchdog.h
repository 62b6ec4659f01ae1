// MPI's own calls (its start, its end, new communicators) wait for other ranks without a limit, and nothing can end such a
// wait. A watchdog ends the whole process instead: then the launcher ends the other ranks.
//
// Owner:   the caller, around these calls. Time in which the process did not run does not count.
// Threads: it has one of its own, which calls `late`.
// Errors:  none: if the system gives no thread, the wait has no limit.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace terrace::comm {

class Watchdog {
 public:
  // Calls `late` if the watchdog still exists after `limit`; `late` ends the process.
  Watchdog(std::chrono::milliseconds limit, std::function<void()> late);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void wait(std::chrono::milliseconds limit, const std::function<void()>& late);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool in_time_ = false;
  std::thread thread_;
};

// The limit of waits in MPI's own calls, if a communicator's calls have this time limit. It is at least some seconds, because
// processes never start and end at the same moment.
std::chrono::milliseconds limit_of_mpi(std::chrono::milliseconds time_limit);
// "rank 0: waited 600 s for other ranks in the start of MPI", which of them are stopped, and what to do.
std::string describe_wait_in_mpi(const std::string& where, std::chrono::milliseconds time_limit);
// Prints the error and ends the process.
[[noreturn]] void end_process(const std::string& error, int code = EXIT_FAILURE);

}  // namespace terrace::comm
