#include <terrace/core/event.h>

#include <stdexcept>

namespace terrace {

void Timeline::advance(std::uint64_t to) {
  std::list<Waiter> ready;
  {
    const std::lock_guard lock(mutex_);
    if (to < now_) throw std::logic_error("Timeline: advance() to an earlier point");
    if (error_) return;  // the points after a failure are never reached
    now_ = to;
    ready = take_ready();
  }
  grown_.notify_all();
  for (const auto& waiter : ready) waiter.then();
}

void Timeline::fail(std::exception_ptr error) {
  std::list<Waiter> ready;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);  // the first error is the cause of the later ones
    ready = take_ready();
  }
  grown_.notify_all();
  for (const auto& waiter : ready) waiter.then();
}

std::list<Timeline::Waiter> Timeline::take_ready() {
  std::list<Waiter> ready;
  for (auto at = waiters_.begin(); at != waiters_.end();) {
    const auto waiter = at++;
    if (error_ || waiter->point <= now_) ready.splice(ready.end(), waiters_, waiter);
  }
  return ready;
}

void Timeline::on_reach(std::uint64_t point, std::function<void()> then) const {
  {
    const std::lock_guard lock(mutex_);
    if (now_ < point && !error_) {
      waiters_.push_back({point, std::move(then)});
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
