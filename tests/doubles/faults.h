// A communicator with faults, for tests: calls that come late, lanes that overtake each other, a rank that dies.
//
// A delay holds up the stream that the call was issued to. Lanes have streams of their own, so messages of different lanes
// arrive in an order that the seed decides.
//
// Owner, threads: as the communicator that it wraps.
// Errors:  the calls of a dead rank fail with an Error that says so; its communicator is destroyed, so the other ranks see it
//          leave.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <terrace/parallel/comm/communicator.h>

namespace terrace {

struct CommunicationFaults {
  std::uint64_t seed = 0;
  std::chrono::microseconds longest_delay{0};
  std::chrono::microseconds shortest_delay{0};  // at most longest_delay; if both are equal, every call is delayed by that time
  int dying_rank = -1;
  std::uint64_t dies_at_call = 0;  // counted from 1; each communicator that is split off counts its own calls
};

std::unique_ptr<Communicator> with_faults(std::unique_ptr<Communicator> inner, const CommunicationFaults& faults);

}  // namespace terrace
