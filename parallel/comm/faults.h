// A communicator with faults, for tests: calls that come late, lanes that overtake each other, a rank that dies.
//
// A delay holds up the stream that the call was issued to. Lanes have streams of their own, so messages of different lanes
// arrive in an order that the seed decides.
//
// Owner, threads: as the communicator that it wraps.
// Errors:  a dead rank's calls fail with an Error that says so; its communicator is gone, and the other ranks see that it left.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

struct CommunicationFaults {
  std::uint64_t seed = 0;
  std::chrono::microseconds longest_delay{0};
  std::chrono::microseconds shortest_delay{0};  // at most the longest; the same: every call takes so much longer
  int dying_rank = -1;
  std::uint64_t dies_at_call = 0;  // counted from 1; what is split off counts for itself
};

std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> inner, const CommunicationFaults& faults);

}  // namespace terrace
