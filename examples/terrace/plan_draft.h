// Drafts: plans of a few blocks and micro-batches that stand for a long step.
//
// A step repeats its blocks and its micro-batches, so four short plans, of n and 2n blocks with m and 2m micro-batches, give
// the time of each further one. Their budgets leave each block as much room as it has in the whole model. docs/cluster.md says
// how near drafts come.
//
// Pure. Threads: any. Errors: as estimate_layers().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <terrace/core/machine.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

struct DraftSizes {
  std::int64_t blocks = 0, micro_batches = 0;  // n and m
};

// Empty: drafts would not be much cheaper than the plan, the blocks are not alike, or a pipeline divides them into stages that
// differ more the fewer they are.
std::optional<DraftSizes> draft_sizes(const RunConfig& config);

// Seconds of a step of `short_config`, planned with chunks of so many elements; 0 if it does not fit.
using PlansShort = std::function<double(const RunConfig& short_config, std::uint64_t chunk_elements)>;

// Seconds of a step of `config`; 0 if a short plan does not fit.
double draft_step(const RunConfig& config, DraftSizes sizes, const MachineProfile& profile, const PlansShort& plans);

}  // namespace terrace::cli
