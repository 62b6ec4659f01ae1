// The links between ranks: rates and latencies within one machine (a node) and between machines.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace::machine {

struct Links {
  std::uint32_t ranks_per_node = 0;  // consecutive ranks; 0: all ranks are on one machine
  double within = 0;                 // bytes/s of a rank, each direction; 0: through the machine's memory, as copies
  double between = 0;                // bytes/s of a node, each direction, shared by its ranks
  double within_latency_s = 0, between_latency_s = 0;  // of one message
};

}  // namespace terrace::machine
