// The costs of collectives: seconds, and bytes by link. After a run, a plan's bytes are compared with a ledger.
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/machine/links.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/map/collective.h>
#include <terrace/parallel/map/step_map.h>

namespace terrace::mapping {

// The properties that decide the cost of a collective. Its `ranks` ranks are `stride` apart in the run's numbering.
struct Exchange {
  comm::Operation operation = comm::Operation::all_gather;
  std::uint64_t bytes = 0;  // of the whole: the result of an all-gather, or the input of a reduction
  std::uint32_t ranks = 1, stride = 1;
  comm::SumOrder order = comm::SumOrder::machines;  // of a reduction
  std::uint64_t sum_bytes = 0;                      // the machines' sums of the whole, if they have more than `bytes`
  bool hop = false;  // an all-to-all in which each rank sends to one other rank and receives from one
  friend bool operator==(const Exchange&, const Exchange&) = default;
};
Exchange exchange_of(const StepMap& map, const Collective& collective);
std::vector<Exchange> exchanges_of(const StepMap& map, const Action& action);  // those of collectives_of() without messages
// The exchanges at the end of a step: the losses and, if no rank has all of a gradient, the blocks of squares for the norm of
// each update. The verdict has already shared the squares of its update.
std::vector<Exchange> results_of(const StepMap& map, const Program& step);
// An average of the ranks' weights, chunk by chunk (weight_average.h).
std::vector<Exchange> average_of(const StepMap& map);

// The bytes that one rank receives, and as many that it sends: `within` its node, and `between` nodes as its share of the
// node's traffic. A ledger (comm/between_machines.h) counts the same if all nodes have equally many ranks. (If the number of
// nodes is not a power of two, some nodes pass on more than others in a gather; then this is the average.)
struct LinkBytes {
  double within = 0, between = 0;
  LinkBytes& operator+=(const LinkBytes& more);
};
LinkBytes link_bytes(const machine::Links& links, const Exchange& exchange);
LinkBytes link_bytes(const machine::Links& links, const StepMap& map, const Program& program);
// The messages within nodes and the rounds between nodes follow one another, and each has a latency: first the ranks meet, then
// the pieces of a reduction (kStagingBytes) are exchanged, then a gather.
double seconds_of(const machine::Links& links, const Exchange& exchange);
// A message between two stages, each on `at_once` neighbouring ranks that send at the same time (the stride of Axis::pp). The
// slowest message decides. If any of them crosses nodes, it takes a node's link, which the ranks of that node share.
double seconds_of_message(const machine::Links& links, std::uint32_t at_once, std::uint32_t one, std::uint32_t other,
                          std::uint64_t bytes);

}  // namespace terrace::mapping
