// Names for the work on a stream, for profilers: lanes are streams, actions of the step program are ranges.
//
// Owner:   the stream. Threads: as Stream. Errors: none; ranges close in pairs even if the work between them fails.
#pragma once

#include <string>

#include <terrace/core/device/device.h>

namespace terrace::device {

// The second base class of a Stream whose device a profiler can watch.
class RangedStream {
 public:
  virtual ~RangedStream() = default;
  [[nodiscard]] virtual bool is_watched() const = 0;
  // Work submitted between the two calls belongs to the name. Ranges nest.
  virtual void begin_range(std::string name) = 0;
  virtual void end_range() = 0;
};

// A range for a scope. `make_name` is called only if a profiler is attached.
class StreamRange {
 public:
  template <class MakeName>
  StreamRange(Stream& stream, const MakeName& make_name) : watched_(dynamic_cast<RangedStream*>(&stream)) {
    if (watched_ && !watched_->is_watched()) watched_ = nullptr;
    if (watched_) watched_->begin_range(make_name());
  }
  ~StreamRange() {
    if (watched_) watched_->end_range();
  }
  StreamRange(const StreamRange&) = delete;
  StreamRange& operator=(const StreamRange&) = delete;

 private:
  RangedStream* watched_;
};

}  // namespace terrace::device
