// The lanes of streams that belong to callers: the end of a lease on such a stream is an operation of a lane, so that moves
// wait for it as they wait for each other, without a waiting thread.
//
// A stream keeps its lane while it has unfinished ends there. The lanes that a chunk manager needs for nothing else, 20, are
// lent; if all of them have unfinished ends, an end on one more stream waits for one of them.
//
// Owner:   the chunk manager; ends before the lanes do. Threads: any; one thread at a time uses a stream.
// Errors:  a stream that fails before an end fails its lane: what waits for that end fails with the same error.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/offload/move/lanes.h>

namespace terrace::offload {

class StreamLanes {
 public:
  explicit StreamLanes(const Lanes& lanes);
  ~StreamLanes() { drain(); }
  StreamLanes(const StreamLanes&) = delete;
  StreamLanes& operator=(const StreamLanes&) = delete;

  // The stream's lane now; a lane without operations if it has none.
  [[nodiscard]] Lane of(const Stream& stream) const;
  // The point when everything submitted to the stream so far has ended, or when the event is done.
  Clock end_after(Stream& stream);
  Clock end_after(const Event& event);
  void drain() const noexcept;  // until all ends have come, or have failed

 private:
  struct Lent {
    Lane lane{};
    const Stream* to = nullptr;  // null: an event
    std::uint64_t ends = 0;
  };
  struct End {
    Lane lane{};
    std::uint64_t number = 0;
  };
  End next_end(const Stream* stream);
  [[nodiscard]] bool is_idle(const Lent& lent) const;

  const Lanes& lanes_;
  mutable std::mutex mutex_;
  std::vector<Lent> lent_;
};

}  // namespace terrace::offload
