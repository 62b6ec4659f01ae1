// What an action sends between ranks, as values: for costs, for the bytes by link of a plan, and for whoever wants to know
// before it happens what a ledger will say afterwards.
//
// Pure. Threads: values.
#pragma once

#include <cstdint>
#include <vector>

#include <terrace/core/links.h>
#include <terrace/parallel/comm/call.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// One collective. Its ranks are `ranks` of the numbering, `stride` apart.
struct Exchange {
  Operation operation = Operation::all_gather;
  std::uint64_t bytes = 0;  // of the whole: what all-gather ends with and a reduction begins with
  std::uint32_t ranks = 1, stride = 1;
  friend bool operator==(const Exchange&, const Exchange&) = default;
};
std::vector<Exchange> exchanges_of(const StepMap& map, const Action& action);
// At the end of a step: losses, and of each of its updates, where nobody has all of a gradient, the blocks of squares behind
// its norm; those of which the step has a verdict are everybody's already.
std::vector<Exchange> results_of(const StepMap& map, const Program& step);
// An average of the ranks' weights, chunk by chunk (weight_average.h).
std::vector<Exchange> average_of(const StepMap& map);

// What one rank sends, and receives, over each kind of link: its own, and its share of its node's.
struct LinkBytes {
  double within = 0, between = 0;
  LinkBytes& operator+=(const LinkBytes& more);
};
LinkBytes link_bytes(const Links& links, const Exchange& exchange);
LinkBytes link_bytes(const Links& links, const StepMap& map, const Program& program);
// Its slower link carries all of it while the other one keeps up: collectives are cut into pieces.
double seconds_of(const Links& links, const Exchange& exchange);

}  // namespace terrace
