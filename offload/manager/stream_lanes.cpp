#include <terrace/offload/manager/stream_lanes.h>

#include <algorithm>
#include <exception>
#include <memory>

namespace terrace::offload {
namespace {

constexpr Lane kNoStream = Lane::compute;  // no operation of a chunk manager is on this lane

constexpr bool moves_chunks(Lane lane) {
  return lane == Lane::upload || lane == Lane::download || lane == Lane::read || lane == Lane::write;
}

void end(const std::shared_ptr<Timeline>& timeline, std::uint64_t number, const std::exception_ptr& failure) {
  failure ? timeline->fail(failure) : timeline->advance(number);
}

}  // namespace

StreamLanes::StreamLanes(const Lanes& lanes) : lanes_(lanes) {
  for (std::size_t i = 0; i < kLanes; ++i)
    if (const auto lane = static_cast<Lane>(i); lane != kNoStream && !moves_chunks(lane)) lent_.push_back({.lane = lane});
}

Lane StreamLanes::of(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find(lent_, &stream, &Lent::to);
  return found == lent_.end() ? kNoStream : found->lane;
}

// A failed lane is never idle again.
bool StreamLanes::is_idle(const Lent& lent) const { return lanes_.of(lent.lane).now() == lent.ends; }

// Another stream may get a lane only when all its ends have come: then each end still includes the earlier ones.
StreamLanes::End StreamLanes::next_end(const Stream* stream) {
  for (std::size_t busy = 0;; ++busy) {
    Event first_free;
    {
      const std::lock_guard lock(mutex_);
      auto found = stream ? std::ranges::find(lent_, stream, &Lent::to) : lent_.end();
      if (found == lent_.end()) found = std::ranges::find_if(lent_, [this](const Lent& lent) { return is_idle(lent); });
      if (found != lent_.end()) {
        found->to = stream;
        return {found->lane, ++found->ends};
      }
      const Lent& lent = lent_[busy % lent_.size()];
      first_free = lanes_.event(lent.lane, lent.ends);
    }
    try {
      first_free.wait();
    } catch (...) {
      if (busy < lent_.size()) continue;
      const std::lock_guard lock(mutex_);  // every lane has had its turn: all have failed, and so does this end
      return {lent_.front().lane, ++lent_.front().ends};
    }
  }
}

Clock StreamLanes::end_after(Stream& stream) {
  const auto [lane, number] = next_end(&stream);
  const auto& timeline = lanes_.timeline(lane);
  try {
    lanes_.announce(stream, lane, number);
    stream.then([timeline, number = number](const std::exception_ptr& failure) { end(timeline, number, failure); });
  } catch (...) {
    timeline->fail(std::current_exception());  // the end would never come
  }
  return Clock::after(lane, number);
}

Clock StreamLanes::end_after(const Event& event) {
  const auto [lane, number] = next_end(nullptr);
  event.on_done([timeline = lanes_.timeline(lane), event, number = number] {
    std::exception_ptr failure;
    try {
      (void)event.done();
    } catch (...) {
      failure = std::current_exception();
    }
    end(timeline, number, failure);
  });
  return Clock::after(lane, number);
}

void StreamLanes::drain() const noexcept {
  for (const auto& lent : lent_) {
    try {
      lanes_.event(lent.lane, lent.ends).wait();
    } catch (...) {  // its lane has reported the error to whoever needed it
    }
  }
}

}  // namespace terrace::offload
