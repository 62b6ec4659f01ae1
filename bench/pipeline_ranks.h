// Ranks of a pipeline, or of a data-parallel run, as threads of this process, each with a plan, an engine and a store of its
// own, as `terrace train --pp` and `--dp` have them.
//
// Owner: the caller. Threads: blocks until all ranks have ended. Errors: the first rank's that failed; does_not_fit by name.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include <terrace/core/trace.h>
#include <terrace/offload/io_engine.h>
#include <terrace/parallel/executor.h>
#include <terrace/parallel/plan.h>
#include <terrace/tests/doubles/faults.h>

namespace terrace::bench {

struct RanksRun {
  PlanRequest request = {};  // of every rank; its pipeline, a synchronous one, and its data ranks say how many there are
  MachineProfile profile = {};
  std::filesystem::path directory = {};  // of stores that vanish with the run
  std::uint64_t steps = 1;
  bool drain_at_end = false;             // of each step: all of its update stands behind its last backward
  std::vector<Trace>* traces = nullptr;  // one a rank, or none
  CommunicationFaults faults = {};       // what calls between them suffer
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
};
struct RankSteps {
  Plan plan;
  std::vector<StepResult> results;
  std::vector<std::int64_t> ended_ns;  // of each step, its update at the end included
};
std::vector<RankSteps> run_ranks(const Model& model, const RanksRun& run);
// Of tensor ranks, which have models of their own; all must live until it returns.
using ModelOfRank = std::function<const Model&(std::uint32_t rank)>;
std::vector<RankSteps> run_ranks(const ModelOfRank& model, const RanksRun& run);

// Of what ran: from one step's end to the next one's, the ranks' last; the first step warms up.
std::vector<double> step_seconds(const std::vector<RankSteps>& ranks);

}  // namespace terrace::bench
