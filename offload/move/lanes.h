// The timelines of one run's lanes, with which clocks are compared.
//
// Owner:   the executor or chunk manager. Threads: each lane's producer advances its own timeline; any thread may wait.
// Errors:  a failed lane fails every wait for a point that it had not reached.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <stop_token>

#include <terrace/core/device/device.h>
#include <terrace/core/device/event.h>
#include <terrace/core/device/issued.h>
#include <terrace/memory/tier.h>

namespace terrace::offload {

class Lanes {
 public:
  Lanes() {
    for (std::size_t i = 0; i < kLanes; ++i) {
      timelines_[i] = std::make_shared<Timeline>();
      issued_[i] = std::make_shared<device::IssuedPoints>(timelines_[i]);
    }
  }
  [[nodiscard]] Timeline& of(Lane lane) const { return *timelines_[index(lane)]; }
  [[nodiscard]] const std::shared_ptr<Timeline>& timeline(Lane lane) const { return timelines_[index(lane)]; }
  [[nodiscard]] Event event(Lane lane, std::uint64_t sequence) const { return {timelines_[index(lane)], sequence}; }
  // Checks every lane, so that a failed lane is reported even if others have not arrived.
  [[nodiscard]] bool reached(const Clock& clock) const {
    bool all = true;
    for (std::size_t i = 0; i < kLanes; ++i)
      if (clock.at[i] != 0 && !timelines_[i]->reached(clock.at[i])) all = false;
    return all;
  }
  void wait(const Clock& clock) const {
    for (std::size_t i = 0; i < kLanes; ++i)
      if (clock.at[i] != 0) timelines_[i]->wait(clock.at[i]);
  }
  // Makes everything submitted to the stream later wait for the clock, except for the stream's own lane: the stream keeps that
  // order anyway, and a wait for it on the host would leave the device idle. Streams of one device wait there for each other.
  void stream_wait(Stream& stream, Lane own, const Clock& clock) const {
    auto* const issuing = dynamic_cast<device::IssuingStream*>(&stream);
    for (std::size_t i = 0; i < kLanes; ++i) {
      if (i == index(own) || clock.at[i] == 0) continue;
      issuing ? issuing->follow(issued_[i], clock.at[i]) : stream.wait(Event(timelines_[i], clock.at[i]));
    }
  }
  // Blocks until the operations of the clock have been issued, for a stream whose waits would block its caller until then.
  // False: `stop` was requested before that.
  bool wait_until_issued(Lane own, const Clock& clock, const std::stop_token& stop) const {
    for (std::size_t i = 0; i < kLanes; ++i)
      if (i != index(own) && clock.at[i] != 0 && !issued_[i]->wait_until_issued(clock.at[i], stop)) return false;
    return true;
  }
  // The stream has been given the whole work of this operation, which end() will end.
  void announce(Stream& stream, Lane lane, std::uint64_t sequence) const {
    if (auto* const issuing = dynamic_cast<device::IssuingStream*>(&stream)) issuing->announce(issued_[index(lane)], sequence);
  }
  // Throws the error of a failed lane, even if no operation waited for it.
  void throw_failure() const {
    constexpr std::uint64_t kNever = ~0ULL;
    for (const auto& lane : timelines_) static_cast<void>(lane->reached(kNever));
  }
  // Ends an operation. The lane fails with `failure`, or with the error of `note`, which records what the operation did.
  template <class Note>
  void end(Lane lane, std::uint64_t sequence, const std::exception_ptr& failure, const Note& note) const {
    if (failure) return of(lane).fail(failure);
    try {
      note();
    } catch (...) {
      return of(lane).fail(std::current_exception());
    }
    of(lane).advance(sequence);
  }
  void fail_all(const std::exception_ptr& error) const {
    for (const auto& lane : timelines_) lane->fail(error);
  }

 private:
  std::array<std::shared_ptr<Timeline>, kLanes> timelines_;
  std::array<std::shared_ptr<device::IssuedPoints>, kLanes> issued_;
};

}  // namespace terrace::offload
