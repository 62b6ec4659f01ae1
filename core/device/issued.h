// How a stream of a device waits for another stream of it without a waiting thread: as soon as the work before a point has been
// issued, the device itself keeps the order.
//
//   producer   announce(points, n)   after the work of point n has been submitted; at its end the timeline advances as always
//   consumer   follow(points, n)     instead of Stream::wait()
//
// Owner:   IssuedPoints is shared by the lane and its streams. Threads: any; streams as Stream.
// Errors:  if the timeline fails before the point, what the consumer submits later fails with the same error: host work does
//          not run, and events that it records rethrow it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>

#include <terrace/core/device/event.h>

namespace terrace::device {

// A place in the issued work of a device, for which its other streams can wait. It lives until that work has ended.
class Issued {
 public:
  virtual ~Issued() = default;
};

// The points of a timeline whose work has been issued.
class IssuedPoints : public std::enable_shared_from_this<IssuedPoints> {
 public:
  explicit IssuedPoints(std::shared_ptr<const Timeline> timeline) : timeline_(std::move(timeline)) {}
  void issue(std::uint64_t point, const std::shared_ptr<const Issued>& place);
  // Blocks until the work of the point has been issued. Null if there is nothing to wait for on the device: the point has been
  // reached without being announced, or the timeline has failed.
  [[nodiscard]] std::shared_ptr<const Issued> wait(std::uint64_t point);
  // Blocks until wait() would not block. False: `stop` was requested before that.
  bool wait_until_issued(std::uint64_t point, const std::stop_token& stop);
  [[nodiscard]] Event event(std::uint64_t point) const { return {timeline_, point}; }

 private:
  void reach(std::uint64_t point);
  std::shared_ptr<const Issued> place_of(std::uint64_t point) const;  // under the mutex

  const std::shared_ptr<const Timeline> timeline_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::map<std::uint64_t, std::weak_ptr<const Issued>> places_;
  std::uint64_t over_ = 0;  // points up to this one need no wait
};

// The second base class of a Stream that can do both.
class IssuingStream {
 public:
  virtual ~IssuingStream() = default;
  virtual void announce(std::shared_ptr<IssuedPoints> points, std::uint64_t point) = 0;
  virtual void follow(std::shared_ptr<IssuedPoints> points, std::uint64_t point) = 0;
  // True if follow() itself blocks its caller until the point has been issued: the stream has no thread that issues its work.
  [[nodiscard]] virtual bool blocks_its_caller() const { return false; }
};

}  // namespace terrace::device
