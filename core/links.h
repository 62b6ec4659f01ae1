// What connects ranks: rates and latencies between those of one machine (a node) and between machines.
//
// Threads: values.
#pragma once

#include <cstdint>

namespace terrace {

struct Links {
  std::uint32_t ranks_per_node = 0;  // neighbours in the numbering; 0: all ranks are on one machine
  double within = 0;                 // bytes/s of a rank, each direction; 0: through the machine's memory, as copies
  double between = 0;                // bytes/s of a node, each direction, shared by its ranks
  double within_latency_s = 0, between_latency_s = 0;  // of one message
  // true: every rank sends each owner its part itself, as the MPI backend does, whose sums have one order. false: what leaves a
  // node is summed, or sent, once for the node, as NCCL's rings do.
  bool direct = false;
};

}  // namespace terrace
