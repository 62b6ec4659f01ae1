#include <terrace/offload/move/copy_lane.h>

#include <string>

#include <terrace/core/device/stream_range.h>
#include <terrace/offload/move/clock_watch.h>

namespace terrace::offload {

struct CopyLane::Flight {
  Move move;
  Mover::Flight times;
  std::shared_ptr<ClockWatch> watch;
};

CopyLane::CopyLane(const Mover::Parts& parts, MoveLog& log, Lane lane)
    : parts_(parts), log_(log), lane_(lane), stream_(parts.device->make_stream(std::string(name_of(lane)))) {}

CopyLane::~CopyLane() = default;

void CopyLane::issue(const Move& move) {
  auto flight = std::make_shared<Flight>(
      Flight{.move = move, .times = {}, .watch = ClockWatch::start(*parts_.lanes, move.after, lane_, nullptr)});
  flight->times.sequence = move.sequence;
  flight->times.issued_ns = now_ns();
  const bool up = lane_ == Lane::upload;
  const std::byte* const from = (up ? parts_.host_base : parts_.device_base) + move.from_offset;
  std::byte* const to = (up ? parts_.device_base : parts_.host_base) + move.to_offset;

  parts_.lanes->stream_wait(*stream_, lane_, move.after);
  stream_->then([flight](const std::exception_ptr&) { flight->times.started_ns = now_ns(); });
  {
    const device::StreamRange range(*stream_, [&] { return move_name(parts_.store, move); });
    stream_->copy(to, from, move.bytes);
  }
  parts_.lanes->announce(*stream_, lane_, move.sequence);
  // The lane fails with the stream's own error, or with that of the lane that it waited for.
  stream_->then([this, flight](const std::exception_ptr& failure) {
    parts_.lanes->end(lane_, flight->move.sequence, failure, [&] {
      flight->times.ended_ns = now_ns();
      flight->times.waited_for = flight->watch->waited_for();
      log_.add(flight->move, flight->times);
    });
  });
}

}  // namespace terrace::offload
