// Searches all named orders, and those of the list scheduler under several caps of live activations, each with stages balanced
// for it. The caller takes the first one that fits into its memory.
//
// Pure. Threads: any. Errors: the first Error(ErrorKind::refused) of `stage_costs`, if it refused every order.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/pipeline/simulate.h>

namespace terrace::pipeline {

struct Found {
  std::string name;  // "1f1b", "interleaved, 3 stages a rank", "list in a V, at most 8 live"
  Pipeline pipeline;
  double makespan = 0;          // simulated, seconds
  std::uint64_t most_live = 0;  // of any rank: layers times micro-batches, roughly proportional to the bytes of its activations
};

// Sorted by speed, then by fewest live activations. Orders that `stage_costs` refuses for this run are left out.
std::vector<Found> search(std::uint32_t ranks, std::uint32_t micro_batches, std::span<const double> layer_costs,
                          const std::function<StageCosts(const Pipeline&)>& stage_costs);

}  // namespace terrace::pipeline
