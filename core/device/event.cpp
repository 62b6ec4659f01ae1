#include <terrace/core/device/event.h>

#include <stdexcept>

namespace terrace {

void Timeline::advance(std::uint64_t to) {
  Waiters ready;
  {
    const std::lock_guard lock(mutex_);
    if (to < now_) throw std::logic_error("Timeline: advance() to an earlier point");
    if (error_) return;  // the points after a failure are never reached
    now_ = to;
    ready = take_ready();
  }
  grown_.notify_all();
  for (const auto& [point, then] : ready) then();
}

void Timeline::fail(std::exception_ptr error) {
  Waiters ready;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);  // the first error is the cause of the later ones
    ready = take_ready();
  }
  grown_.notify_all();
  for (const auto& [point, then] : ready) then();
}

Timeline::Waiters Timeline::take_ready() {
  Waiters ready;
  while (!waiters_.empty() && (error_ || waiters_.begin()->first <= now_))
    ready.insert(ready.end(), waiters_.extract(waiters_.begin()));
  return ready;
}

void Timeline::on_reach(std::uint64_t point, std::function<void()> then) const {
  {
    const std::lock_guard lock(mutex_);
    if (now_ < point && !error_) {
      waiters_.emplace(point, std::move(then));
      return;
    }
  }
  then();
}

void Timeline::wait(std::uint64_t point) const {
  std::unique_lock lock(mutex_);
  grown_.wait(lock, [&] { return now_ >= point || error_; });
  if (now_ < point) std::rethrow_exception(error_);
}

bool Timeline::reached(std::uint64_t point) const {
  const std::lock_guard lock(mutex_);
  if (now_ < point && error_) std::rethrow_exception(error_);
  return now_ >= point;
}

std::uint64_t Timeline::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

}  // namespace terrace
