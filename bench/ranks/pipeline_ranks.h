// Runs the ranks of a pipeline, or of a data-parallel run, as threads of this process. Each has its own plan, engine and store,
// as with `terrace train --pp` and `--dp`.
//
// Owner: the caller. Threads: blocks until all ranks have ended. Errors: that of the first rank that failed; if it does not
//        fit, Error(ErrorKind::does_not_fit).
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include <terrace/bench/session.h>
#include <terrace/core/base/trace.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/executor.h>
#include <terrace/tests/doubles/faults.h>

namespace terrace::bench {

struct RanksRun {
  PlanRequest request = {};  // of every rank; its synchronous pipeline and its data ranks give the number of ranks
  MachineProfile profile = {};
  std::filesystem::path directory = {};  // for the ranks' stores, which are removed after the run
  std::uint64_t steps = 1;
  bool drain_at_end = false;             // puts all updates of a step after its last backward
  std::vector<Trace>* traces = nullptr;  // one per rank, or null
  CommunicationFaults faults = {};       // faults in the communication between the ranks
  std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
};
struct RankSteps {
  Plan plan;
  std::vector<running::StepResult> results;
  std::vector<std::int64_t> ended_ns;  // when each step ended, including its update
};
std::vector<RankSteps> run_ranks(const Model& model, const RanksRun& run);
// For tensor ranks, each of which has its own model; all must live until run_ranks() returns.
using ModelOfRank = std::function<const Model&(std::uint32_t rank)>;
std::vector<RankSteps> run_ranks(const ModelOfRank& model, const RanksRun& run);

// The times of the steps that ran: from the end of a step to the end of the next, on the rank that is last. The first step is a
// warm-up and has no time.
std::vector<double> step_seconds(const std::vector<RankSteps>& ranks);

// The times of the steps that ran, and how much of the first rank's communication ran beside computing, beside the simulated
// ones: a row of a bench's results.
Result communication_beside(const std::vector<RankSteps>& ranks, const Plan& simulated);

}  // namespace terrace::bench
