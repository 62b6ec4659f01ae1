// Timelines and events: how one lane of work waits for another.
//
// A timeline is a counter that only grows; its single producer advances it. An event is a point on a timeline. A wait
// blocks even if the point has not been issued yet (it is not a no-op): the producer must already be going to reach it.
//
// Owner:   shared; an event keeps its timeline alive.
// Threads: advance()/fail() by the producer; everything else from any thread.
// Errors:  fail() poisons the timeline: every wait for a point that was not reached throws the producer's error.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace terrace {

class Timeline {
 public:
  void advance(std::uint64_t to);
  void fail(std::exception_ptr error);
  void wait(std::uint64_t point) const;
  // Calls `then` once, when the point is reached or the timeline fails before it: immediately on this thread if that has
  // already happened, else on the producer's thread. It runs without the timeline's lock, must be short and must not throw.
  void on_reach(std::uint64_t point, std::function<void()> then) const;
  [[nodiscard]] bool reached(std::uint64_t point) const;  // throws if the timeline failed before the point
  [[nodiscard]] std::uint64_t now() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable grown_;
  // Callbacks, by the point that each waits for; removed under the lock, called after it is released. Thousands may wait,
  // because moves are issued far ahead.
  using Waiters = std::multimap<std::uint64_t, std::function<void()>>;
  Waiters take_ready();  // moves the nodes to another map: ending waiters needs no memory

  std::uint64_t now_ = 0;
  std::exception_ptr error_;
  mutable Waiters waiters_;
};

class Event {
 public:
  Event() = default;  // already done
  Event(std::shared_ptr<const Timeline> timeline, std::uint64_t point) : timeline_(std::move(timeline)), point_(point) {}
  void wait() const {
    if (timeline_) timeline_->wait(point_);
  }
  [[nodiscard]] bool done() const { return !timeline_ || timeline_->reached(point_); }
  // Timeline::on_reach() of this point.
  void on_done(std::function<void()> then) const {
    if (!timeline_) return then();
    timeline_->on_reach(point_, std::move(then));
  }

 private:
  std::shared_ptr<const Timeline> timeline_;
  std::uint64_t point_ = 0;
};

}  // namespace terrace
