// What moved and when: byte counts, recent flights, trace spans.
//
// Owner:   the mover. Threads: any.
#pragma once

#include <array>
#include <mutex>
#include <vector>

#include <terrace/offload/move/move_error.h>
#include <terrace/offload/move/mover.h>

namespace terrace::offload {

class MoveLog {
 public:
  MoveLog(const ChunkStore* store, Trace* trace) : store_(store), trace_(trace) {
    for (auto& lane : flights_) lane.resize(kKeptFlights);
  }

  void add(const Move& move, const Mover::Flight& flight) {
    const Lane lane = lane_of(move.from, move.to);
    {
      const std::lock_guard lock(mutex_);
      moved_.add(move);
      flights_[index(lane)][move.sequence % kKeptFlights] = flight;
    }
    if (trace_) trace_->span({std::string(name_of(lane)), move_name(store_, move), flight.started_ns, flight.ended_ns});
  }

  bool find(Lane lane, std::uint64_t sequence, Mover::Flight& flight) const {
    const std::lock_guard lock(mutex_);
    const auto& kept = flights_[index(lane)][sequence % kKeptFlights];
    if (sequence == 0 || kept.sequence != sequence) return false;
    flight = kept;
    return true;
  }

  [[nodiscard]] memory::Traffic moved() const {
    const std::lock_guard lock(mutex_);
    return moved_;
  }

 private:
  static constexpr std::size_t kKeptFlights = 4096;  // of each lane: several steps of a large model

  const ChunkStore* const store_;
  Trace* const trace_;
  mutable std::mutex mutex_;
  memory::Traffic moved_;
  std::array<std::vector<Mover::Flight>, kLanes> flights_;
};

}  // namespace terrace::offload
