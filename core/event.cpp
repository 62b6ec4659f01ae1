#include <terrace/core/event.h>

#include <algorithm>
#include <iterator>
#include <stdexcept>

namespace terrace {

void Timeline::advance(std::uint64_t to) {
  std::vector<Waiter> ready;
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
  std::vector<Waiter> ready;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);  // the first error is the cause of the later ones
    ready = take_ready();
  }
  grown_.notify_all();
  for (const auto& waiter : ready) waiter.then();
}

std::vector<Timeline::Waiter> Timeline::take_ready() {
  std::vector<Waiter> ready;
  if (waiters_.empty()) return ready;
  const auto first =
      std::stable_partition(waiters_.begin(), waiters_.end(), [&](const Waiter& w) { return !error_ && w.point > now_; });
  std::move(first, waiters_.end(), std::back_inserter(ready));
  waiters_.erase(first, waiters_.end());
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
