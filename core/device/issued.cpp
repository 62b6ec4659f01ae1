#include <terrace/core/device/issued.h>

#include <algorithm>

namespace terrace::device {

void IssuedPoints::issue(std::uint64_t point, const std::shared_ptr<const Issued>& place) {
  {
    const std::lock_guard lock(mutex_);
    places_[point] = place;
  }
  timeline_->on_reach(point, [self = shared_from_this(), point] { self->reach(point); });
  changed_.notify_all();
}

std::shared_ptr<const Issued> IssuedPoints::wait(std::uint64_t point) {
  timeline_->on_reach(point, [self = shared_from_this(), point] { self->reach(point); });
  std::shared_ptr<const Issued> place;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    place = place_of(point);
    return place || over_ >= point;
  });
  return place;
}

bool IssuedPoints::wait_until_issued(std::uint64_t point, const std::stop_token& stop) {
  timeline_->on_reach(point, [self = shared_from_this(), point] { self->reach(point); });
  std::unique_lock lock(mutex_);
  return changed_.wait(lock, stop, [&] { return over_ >= point || place_of(point); });
}

// The work of a later point includes that of this one.
std::shared_ptr<const Issued> IssuedPoints::place_of(std::uint64_t point) const {
  for (auto at = places_.lower_bound(point); at != places_.end(); ++at)
    if (auto place = at->second.lock()) return place;
  return nullptr;
}

void IssuedPoints::reach(std::uint64_t point) {
  {
    const std::lock_guard lock(mutex_);
    over_ = std::max(over_, point);
    places_.erase(places_.begin(), places_.upper_bound(over_));
  }
  changed_.notify_all();
}

}  // namespace terrace::device
