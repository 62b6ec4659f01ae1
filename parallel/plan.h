// plan() decides and times a whole run before it allocates anything.
//
// It lays out the model, writes the programs, proves them, walks them against residency with the real budgets, and times the
// walk on the machine profile. The engine then walks the same programs with the same code, so the plan's moves, places and
// peaks are the run's.
//
// Pure (no allocation of tiers, no I/O). Threads: any. Errors: Error(Exit::usage) for requests that make no sense; a request
// that does not fit comes back as a Plan with fits == false and a refusal.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/machine.h>
#include <terrace/memory/tier.h>
#include <terrace/parallel/exchange.h>
#include <terrace/parallel/passes.h>
#include <terrace/parallel/pipeline/pipeline.h>
#include <terrace/parallel/simulator.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

class ThreadPool;

enum class Order : std::uint8_t { horizontal, vertical, group_vertical };
inline constexpr std::uint32_t kAutoDepth = ~0U;

struct PlanRequest {
  StepShape shape = {};
  Budget budget = {};
  std::string recipe = "fp32";                                           // of recipes(), with the model's dtype
  std::vector<Kind> states = {Kind::first_moment, Kind::second_moment};  // Optimizer::states()
  std::optional<LayerUnit> layer_unit = {};                              // Optimizer::layer_unit()
  std::vector<ParamGroup> param_groups = {};                             // rates and decays of the parameters they name
  bool disk_tier = false;                                                // false: the disk holds commits only
  // Empty settings are chosen by simulating candidates (choose.h).
  std::optional<Order> order = Order::horizontal;
  std::uint32_t group = 0;  // micro-batches in a group, for group_vertical
  // How many layers recompute, and how many offload, their activations (activations.h says which ones). If `activations` is not
  // empty, it gives the setting of each layer instead.
  std::optional<std::uint32_t> recompute = 0, offload = 0;
  std::vector<LayerActivations> activations = {};
  std::optional<UpdatePlace> update = {};  // where updates run; empty: chosen
  // Deferred updates, which allow exact global-norm clipping without a stall; false: updates inside the backward. An
  // asynchronous order of a pipeline clips each of its updates within the step instead.
  bool updates_before_use = true;
  std::uint32_t prefetch_depth = kAutoDepth;
  std::uint64_t chunk_elements = 0;   // 0: the planner searches for the best size
  std::int64_t decode_positions = 0;  // not 0: generation instead of training, with caches of so many positions; shape {1, 1}
  // For generation. true: fill() gives the weights, in the dtype that layers read, and nothing else is kept. false: the weights
  // are read from a training run's store.
  bool weights_given = false;
  // The life of the run, which the plan walks as the trainer will: the number of steps (0: a few), evaluations and commits
  // after every n-th step (0: never), and one of each at the end. The plan skips the middle of a very long life.
  std::uint64_t steps = 0, evaluate_every = 0, evaluate_batches = 0, commit_every = 0;
  std::uint64_t visits = 1;         // how often all weights are read at the end: for their hash, and to save them
  std::uint64_t average_every = 0;  // steps between the averages of local SGD (DataParallel::local)
  std::uint32_t generations = 2;    // of state on disk; with one, nothing can be committed before the end
  bool commits = true;              // false: no commits, not even at the end; the disk holds no more than its tier
  // Each rank of a pipeline has its own plan: of its layers, in the order of the pipeline's schedule instead of `order`.
  std::optional<pipeline::Pipeline> pipeline = {};
  std::uint32_t pipeline_rank = 0;
  DataParallel data = {};  // the budgets, shape and traffic are each rank's
  // With sharded weights: layer actions between a gather and its use. With sharded gradients: if not 0, a layer's gradients are
  // reduced beside the next layer's backward, in a separate place.
  std::uint32_t gather_ahead = kAutoDepth;
};

struct Programs {
  Program first;     // a step without a pending update
  Program steady;    // a step that begins with the pending update, or that updates inside its backward
  Program drain;     // the pending update alone
  Program evaluate;  // evaluated_at_once() micro-batches
  Program fill, visit;
  Program average;                  // local SGD: visits and fills each chunk; otherwise empty
  Program gather;                   // after a resume: weights that other ranks commit; empty if there are none
  Program decode;                   // generation: one position
  bool updates_before_use = false;  // the steady step applies the previous step's update (deferred updates)
};

// Of one rank, like all budgets of a plan.
struct Refusal {
  Tier tier{};
  std::uint64_t missing_bytes = 0;
  std::string why;                 // what does not fit, and the largest consumers
  std::uint64_t enough_bytes = 0;  // the nearest budget of the tier that fits, as walked; 0: none is enough alone
  std::uint64_t least_bytes = 0;   // of a model with too many chunks to search: the tier needs more than this; otherwise 0
};

// The order of a step, and how many layers recompute or offload their activations.
struct StepChoice {
  Order order = Order::horizontal;
  std::uint32_t group = 0;
  std::uint32_t recompute = 0, offload = 0;  // layers
  friend bool operator==(const StepChoice&, const StepChoice&) = default;
};
// "vertical in groups of 4, 12 layers recompute, all offload"
std::string to_text(const StepChoice& choice, std::uint32_t layers);
struct TriedChoice {
  StepChoice choice;
  std::optional<double> seconds = {};  // of a step; empty: the choice does not fit
};

// Local SGD: one average of the ranks' weights, including the pending update before it.
struct PlannedAverage {
  std::uint64_t every = 0;  // steps; 0: no averages
  double seconds = 0;
  Traffic traffic;                 // between tiers
  std::uint64_t summed_bytes = 0;  // all-reduced
  LinkBytes links;                 // between ranks
};

struct Plan {
  bool fits = false;
  Refusal refusal;  // if it does not fit

  StepMap::Options map;  // how the engine lays the model out
  Budget capacity;       // bytes that the engine allocates: at most the budget
  std::uint32_t generations = 2;
  std::uint32_t prefetch_depth = 0, gather_ahead = 0;
  Programs programs;

  PerTier<std::uint64_t> peak_bytes{};      // reserved, over the whole run, as walked
  PerTier<std::uint64_t> smallest_bytes{};  // the smallest legal budgets of device and host
  std::vector<Traffic> step_traffic;        // of each step: a fresh run moves exactly these bytes
  Traffic steady_traffic;                   // of the last of these steps
  LinkBytes steady_links;                   // the same between ranks, including a step's share of an average
  SimulatedTimes times;                     // mean of a steady step, including its share of an average
  PlannedAverage average;
  // A commit drains the pending update and writes all chunks that are not yet on disk. Bytes and time of the last commit walked
  // (the time ends with the last write; the syncs are not included), and the number of commits in the run.
  Traffic commit_traffic;
  double commit_seconds = 0;
  std::uint64_t commits = 0;
  double floor_s = 0;   // compute alone: no plan can be faster on this machine
  std::string binding;  // the bottleneck: "compute", "read", "write", "upload", "download"
  std::string link;     // the busiest link, "PCIe", "host memory" or "disk"; empty if the step does not stall
  StepChoice choice;
  std::vector<TriedChoice> tried;  // the candidates; empty if the request left nothing open
  std::uint64_t state_bytes = 0, parameters = 0;
};

// The plan of data rank 0. Its decisions (chunks, tiers, distances) apply to all ranks: their programs differ only in which
// chunk of a group they hold. With a pool, candidates are walked in parallel; the decision does not depend on it.
Plan plan(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr);
// The same plan for another rank. Throws DoesNotFit in the unlikely case that its walk needs more memory than rank 0's.
Plan for_rank(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
              std::uint32_t rank);

// The traffic of a steady step, including its share of an average.
Traffic traffic_of_step(const Plan& plan);

// Times a fitting plan again with measured costs (measure_costs.h). Its decisions do not change.
void retime(Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile, const CostModel& costs);

// Writes the spans of a simulated steady step, in the same form as a real run.
void trace_step(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
                const CostModel& costs, Trace& trace);

// The layout of a request's model if updates run in the given place.
StepMap::Options map_options(const Model& model, const PlanRequest& request, const MachineProfile& profile,
                             const UpdatePlace& update);
// If the disk is not a tier, it has unlimited room for commits.
Budget with_room_for_commits(Budget budget);

// Micro-batches that a data rank evaluates in one program: 1 without a pipeline. In a pipeline, several fill it: at most as
// many as a step has, and no more than needed for the same number of programs.
std::uint32_t evaluated_at_once(const PlanRequest& request);

// The programs of a request for a laid-out model, checked.
Programs write_programs(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead = 0);

}  // namespace terrace
