// The time since which a thread waits. Time in which its process did not run (it was stopped, or the machine slept) does not
// count.
//
// Owner:   the waiting thread. Threads: that one.
#pragma once

#include <chrono>
#include <utility>

namespace terrace::comm {

class WaitClock {
 public:
  using Clock = std::chrono::steady_clock;
  Clock::time_point since() {
    constexpr std::chrono::seconds kAway{1};  // a running thread asks far more often
    const auto now = Clock::now(), before = std::exchange(looked_, now);
    if (now - before > kAway) since_ += now - before;
    return since_;
  }

 private:
  Clock::time_point since_ = Clock::now(), looked_ = since_;
};

}  // namespace terrace::comm
