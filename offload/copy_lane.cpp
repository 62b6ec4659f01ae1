#include <terrace/offload/copy_lane.h>

#include <string>

#include <terrace/core/error.h>
#include <terrace/offload/clock_watch.h>

namespace terrace {

// Lives in the work that ends the move. A poisoned stream drops its work without running it: then this is destroyed unfinished,
// and the lane fails instead of leaving its waiters to wait for ever.
struct CopyLane::Flight {
  const Lanes& lanes;
  Move move;
  Lane lane{};
  Mover::Flight times;
  std::shared_ptr<ClockWatch> watch;
  bool finished = false;

  Flight(const Lanes& of, const Move& which, Lane on)
      : lanes(of), move(which), lane(on), watch(ClockWatch::start(of, which.after, on, nullptr)) {
    times.sequence = move.sequence;
    times.issued_ns = now_ns();
  }
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;
  ~Flight() {
    if (!finished) lanes.of(lane).fail(cause());
  }

  [[nodiscard]] std::exception_ptr cause() const {
    try {
      if (lanes.reached(move.after)) throw Error(std::string(name_of(lane)) + ": a copy failed on the device");
      throw Error(std::string(name_of(lane)) + ": a copy was not started, because one before it failed");
    } catch (...) {
      return std::current_exception();
    }
  }
};

CopyLane::CopyLane(const Mover::Parts& parts, MoveLog& log, Lane lane)
    : parts_(parts), log_(log), lane_(lane), stream_(parts.device->make_stream(std::string(name_of(lane)))) {}

CopyLane::~CopyLane() = default;

void CopyLane::issue(const Move& move) {
  auto flight = std::make_shared<Flight>(*parts_.lanes, move, lane_);
  const bool up = lane_ == Lane::upload;
  const std::byte* const from = (up ? parts_.host_base : parts_.device_base) + move.from_offset;
  std::byte* const to = (up ? parts_.device_base : parts_.host_base) + move.to_offset;

  parts_.lanes->stream_wait(*stream_, lane_, move.after);
  stream_->then([flight] { flight->times.started_ns = now_ns(); });
  stream_->copy(to, from, move.bytes);
  stream_->then([flight, &log = log_] {
    flight->times.ended_ns = now_ns();
    flight->times.waited_for = flight->watch->waited_for();
    log.add(flight->move, flight->times);
    flight->finished = true;
    flight->lanes.of(flight->lane).advance(flight->move.sequence);
  });
}

}  // namespace terrace
