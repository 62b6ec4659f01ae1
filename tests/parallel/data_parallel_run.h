// The toy model on several ranks: threads of this process, each with an engine and a store of its own.
#pragma once

#include <string>
#include <vector>

#include <terrace/parallel/comm/faults.h>
#include <terrace/tests/support/toy_run.h>

#include "comm/rank_group.h"

namespace terrace::toy {

// What every rank's body came to; `errors` where one threw.
struct RanksResult {
  std::vector<RunResult> ranks;
  test::Outcome errors;
};

inline RunOptions of_rank(RunOptions o, int rank) {
  o.store /= "rank" + std::to_string(rank);
  return o;
}

inline RanksResult run_ranks(const RunOptions& o, const CommunicatorOptions& options = {std::chrono::seconds(60)},
                             const CommunicationFaults& faults = {}) {
  RanksResult out;
  const auto ranks = o.data.ranks * o.pipeline_ranks();
  out.ranks.resize(ranks);
  out.errors = test::on_threads(static_cast<int>(ranks), options, [&](test::Rank& rank) {
    const auto r = rank.comm->rank();
    if (faults.longest_delay.count() > 0) rank.comm = with_faults(std::move(rank.comm), faults);
    out.ranks[static_cast<std::size_t>(r)] = run(of_rank(o, r), rank.comm.get());
  });
  return out;
}

}  // namespace terrace::toy
