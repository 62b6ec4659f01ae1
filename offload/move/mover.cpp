#include <terrace/offload/move/mover.h>

#include <array>
#include <exception>
#include <stdexcept>

#include <terrace/offload/move/copy_lane.h>
#include <terrace/offload/move/disk_lanes.h>

namespace terrace::offload {

struct Mover::Impl {
  explicit Impl(const Parts& of)
      : parts(of), log(of.store, of.trace), upload(of, log, Lane::upload), download(of, log, Lane::download) {
    if ((of.store == nullptr) != (of.engine == nullptr))
      throw std::logic_error("Mover: a store needs an engine, and an engine a store");
    if (of.store) disk = std::make_shared<DiskLanes>(of, log);
  }
  ~Impl() {
    if (disk) DiskLanes::close(disk);
  }

  const Parts parts;
  MoveLog log;
  CopyLane upload, download;
  std::shared_ptr<DiskLanes> disk;
  std::array<std::uint64_t, kLanes> issued{};  // the last sequence of each lane
};

Mover::Mover(const Parts& parts) : impl_(std::make_unique<Impl>(parts)) {}
Mover::~Mover() = default;  // every lane finishes its issued moves

// A move that could not be issued never ends, so its lane fails.
void Mover::issue(const Move& move) try {
  const Lane lane = lane_of(move.from, move.to);
  impl_->issued[index(lane)] = move.sequence;
  if (lane == Lane::upload) {
    impl_->upload.issue(move);
  } else if (lane == Lane::download) {
    impl_->download.issue(move);
  } else if (impl_->disk) {
    impl_->disk->issue(move);
  } else {
    throw std::logic_error("Mover: a move from or to the disk without a store");
  }
} catch (...) {
  impl_->parts.lanes->of(lane_of(move.from, move.to)).fail(std::current_exception());
  throw;
}

void Mover::drain() {
  if (impl_->disk) impl_->disk->drain();
  std::exception_ptr first;
  for (const Lane lane : {Lane::read, Lane::write, Lane::upload, Lane::download}) {
    try {
      impl_->parts.lanes->of(lane).wait(impl_->issued[index(lane)]);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

Event Mover::written() const { return impl_->parts.lanes->event(Lane::write, impl_->issued[index(Lane::write)]); }

memory::Traffic Mover::moved() const { return impl_->log.moved(); }
bool Mover::find(Lane lane, std::uint64_t sequence, Flight& flight) const { return impl_->log.find(lane, sequence, flight); }

}  // namespace terrace::offload
