// plan() decides and times a whole run before it allocates anything.
//
// It lays out the model, writes the programs, checks them, walks them against residency with the real budgets, and times the
// walk on the machine profile. The engine then walks the same programs with the same code, so the run has the plan's moves,
// places and peaks.
//
// Pure (no allocation of tiers, no I/O). Threads: any. Errors: Error(ErrorKind::refused) for requests that make no sense; a
// request that does not fit comes back as a Plan with fits == false and a refusal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/map/exchange.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/plan/choose.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/plan/programs.h>
#include <terrace/parallel/walk/simulator.h>

namespace terrace {

class ThreadPool;

// Why a plan does not fit; for one rank, like all budgets of a plan.
struct Refusal {
  Tier tier{};
  std::uint64_t missing_bytes = 0;
  std::string why;                 // what does not fit, and the largest consumers
  std::uint64_t enough_bytes = 0;  // the least budget of the tier that fits, found by walks; 0: none was found
  // If no budget of this tier alone is enough: the tier that must also grow, and its budget with which enough_bytes fits.
  // other_bytes is 0 if no other tier must grow.
  Tier other{};
  std::uint64_t other_bytes = 0;
  std::uint64_t least_bytes = 0;  // if no budget was searched: the tier needs more than this; else 0
};

// Local SGD: one average of the ranks' weights, including the pending update before it.
struct PlannedAverage {
  std::uint64_t every = 0;  // steps; 0: no averages
  double seconds = 0;
  memory::Traffic traffic;         // between tiers
  std::uint64_t summed_bytes = 0;  // all-reduced
  mapping::LinkBytes links;        // between ranks
};

struct Plan {
  bool fits = false;
  Refusal refusal;  // if it does not fit

  StepMap::Options map;  // how the engine lays the model out
  Budget capacity;       // bytes that the engine allocates: at most the budget
  std::uint32_t generations = 2;
  std::uint32_t prefetch_depth = 0, gather_ahead = 0;
  planning::Programs programs;

  PerTier<std::uint64_t> peak_bytes{};        // reserved, over the whole run, as walked
  PerTier<std::uint64_t> smallest_bytes{};    // the smallest legal budgets of device and host
  std::vector<memory::Traffic> step_traffic;  // [step]: a fresh run moves exactly these bytes
  memory::Traffic steady_traffic;             // the last of step_traffic
  mapping::LinkBytes steady_links;            // the same between ranks, including a step's share of an average
  walk::SimulatedTimes times;                 // mean of a steady step, including its share of an average
  PlannedAverage average;
  // A commit drains the pending update and writes all chunks that are not yet on disk. commit_traffic and commit_seconds are
  // those of the last commit walked (the time ends with the last write and excludes the syncs); commits is their number in the
  // run.
  memory::Traffic commit_traffic;
  double commit_seconds = 0;
  double commit_added_seconds = 0;  // added to the run by a commit written beside the next step; else commit_seconds
  std::uint64_t commits = 0;
  double restoring_seconds = 0;  // a step that takes early updates back, because the norm of the step before clipped; 0: none
  double floor_s = 0;            // compute alone: no plan can be faster on this machine
  std::string binding;           // the bottleneck: "compute", "read", "write", "upload", "download"
  std::string link;              // the busiest link, "PCIe", "host memory" or "disk"; empty if the step does not stall
  planning::StepChoice choice;
  std::vector<planning::TriedChoice> tried;  // the candidates; empty if the request left nothing open
  std::uint64_t state_bytes = 0, parameters = 0, trained_parameters = 0;  // trained: without frozen ones
};

// The plan of the first data rank with the layers of request.rank. Its decisions (chunks, tiers, distances) apply to all data
// ranks, whose programs differ only in which chunk of a group they hold. With a pool, candidates are walked in parallel; the
// decision does not depend on it.
Plan plan(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr);
// The same plan for request.rank. Throws DoesNotFit in the unlikely case that its walk needs more memory than the first one's.
Plan for_rank(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile);
// The greatest peaks over the data ranks; `plan` is the first one's plan. Each holds other chunks, so another rank may reserve
// more. Walks the first eight ranks, as plan() does to check that they fit.
PerTier<std::uint64_t> peak_of_data_ranks(const Plan& plan, const Model& model, const PlanRequest& request,
                                          const MachineProfile& profile, ThreadPool& pool);

// The traffic of a steady step, including its share of an average.
memory::Traffic traffic_of_step(const Plan& plan);

// Times a fitting plan again with measured costs (measure_costs.h). Its decisions do not change.
void retime(Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
            const walk::CostModel& costs);

// Writes the spans of a simulated steady step, in the same form as a real run.
void trace_step(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
                const walk::CostModel& costs, Trace& trace);

}  // namespace terrace
