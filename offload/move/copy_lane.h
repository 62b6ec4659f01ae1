// One direction between device and host: a device stream that waits for each move's clock, copies, and advances the lane.
//
// Owner:   the mover. Threads: issue() from the mover's thread. Errors: if the stream skips a move, because an operation that
//          it waited for failed, the lane fails with that error.
#pragma once

#include <memory>

#include <terrace/offload/move/move_log.h>

namespace terrace::offload {

class CopyLane {
 public:
  CopyLane(const Mover::Parts& parts, MoveLog& log, Lane lane);
  ~CopyLane();  // finishes what was issued
  void issue(const Move& move);

 private:
  struct Flight;
  const Mover::Parts parts_;
  MoveLog& log_;
  const Lane lane_;
  std::unique_ptr<Stream> stream_;
};

}  // namespace terrace::offload
