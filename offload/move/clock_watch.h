// Reports when a clock has been reached, without a waiting thread, and which lane reached it last.
//
// Owner:   shared between the waiter and the timelines. Threads: ready() and waited_for() from any; `then` runs on the thread
//          of the last producer, or at once. Errors: a failed lane makes it ready: Lanes::reached() then throws the lane's
//          error.
#pragma once

#include <atomic>
#include <bit>
#include <functional>
#include <memory>
#include <utility>

#include <terrace/offload/move/lanes.h>

namespace terrace::offload {

class ClockWatch {
 public:
  // `own` is the move's own lane: the answer of waited_for() if the move waited only for the moves before it there.
  static std::shared_ptr<ClockWatch> start(const Lanes& lanes, const Clock& clock, Lane own, std::function<void()> then) {
    auto watch = std::shared_ptr<ClockWatch>(new ClockWatch(own, std::move(then)));
    for (std::size_t i = 0; i < kLanes; ++i) {
      if (clock.at[i] == 0) continue;
      Timeline& timeline = lanes.of(static_cast<Lane>(i));
      if (timeline.now() >= clock.at[i]) continue;
      watch->pending_.fetch_or(bit(i));
      timeline.on_reach(clock.at[i], [watch, i, &timeline, point = clock.at[i]] {
        watch->last_.store(static_cast<Lane>(i));
        watch->met(bit(i), timeline.now() < point);
      });
    }
    watch->met(kStarting, false);
    return watch;
  }

  [[nodiscard]] bool ready() const { return failed_.load() || pending_.load() == 0; }
  // A lane may reach the clock and release its waiters before it reports here: a lane that is still pending is then the last
  // one.
  [[nodiscard]] Lane waited_for() const {
    const auto pending = pending_.load();
    return pending == 0 ? last_.load() : static_cast<Lane>(std::countr_zero(pending));
  }

 private:
  ClockWatch(Lane own, std::function<void()> then) : last_(own), then_(std::move(then)) {}

  static constexpr unsigned bit(std::size_t lane) { return 1U << lane; }
  static constexpr unsigned kStarting = 1U << kLanes;

  void met(unsigned what, bool failed) {
    if (failed) failed_.store(true);
    if ((pending_.fetch_and(~what) == what || failed) && then_) then_();
  }

  std::atomic<unsigned> pending_{kStarting};  // a bit for each lane that has not arrived, and one while start() runs
  std::atomic<bool> failed_{false};
  std::atomic<Lane> last_;
  const std::function<void()> then_;
};

}  // namespace terrace::offload
