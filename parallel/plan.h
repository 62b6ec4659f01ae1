// plan(): a whole run, decided and timed before anything is allocated.
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
  bool disk_tier = false;                                                // false: the disk is for commits only
  // Empty ones are chosen, by simulating what there is to choose from (choose.h).
  std::optional<Order> order = Order::horizontal;
  std::uint32_t group = 0;  // micro-batches a group, of group_vertical
  // How many layers compute again what their forward saved, and how many offload what it left (activations.h says which come
  // first); or, where it is not empty, each layer's own setting.
  std::optional<std::uint32_t> recompute = 0, offload = 0;
  std::vector<LayerActivations> activations = {};
  std::optional<UpdatePlace> update = {};  // where updates run; empty: chosen
  // Exact global-norm clipping without a stall; false: inside the backward. An asynchronous order of a pipeline clips each of
  // its updates within the step instead.
  bool updates_before_use = true;
  std::uint32_t prefetch_depth = kAutoDepth;
  std::uint64_t chunk_elements = 0;   // 0: searched
  std::int64_t decode_positions = 0;  // generation instead of training, with caches of so many positions; shape {1, 1}
  // Of generation: fill() gives the weights, in the dtype that layers read, and nothing else is kept. Otherwise they are those
  // of a store, where they lie.
  bool weights_given = false;
  // The life of the run, which the plan walks as the trainer will: steps (0: some), evaluations and commits after every n-th
  // (0: never), and one of each at the end. Very long lives are cut short in the middle.
  std::uint64_t steps = 0, evaluate_every = 0, evaluate_batches = 0, commit_every = 0;
  std::uint64_t average_every = 0;  // of ranks with copies of their own (DataParallel::local)
  std::uint32_t generations = 2;    // of state on disk; with one, nothing can be committed before the end
  bool commits = true;              // false: not even then, and the disk holds no more than its tier
  // The ranks of a pipeline plan each for itself: this one's layers, in the order of the pipeline's schedule instead of
  // `order`.
  std::optional<pipeline::Pipeline> pipeline = {};
  std::uint32_t pipeline_rank = 0;
  DataParallel data = {};  // the budgets, shape and traffic are each rank's
  // With sharded weights: layer actions between a gather and its use. With sharded gradients: whether (not 0) a layer's are
  // reduced beside the next layer's backward, in a place of their own.
  std::uint32_t gather_ahead = kAutoDepth;
};

struct Programs {
  Program first;     // a step without a pending update
  Program steady;    // a step that begins with the pending update, or that updates inside its backward
  Program drain;     // the pending update alone
  Program evaluate;  // evaluated_at_once() micro-batches
  Program fill, visit;
  Program average;                  // chunk by chunk visited and filled; empty where ranks have no copies of their own
  Program gather;                   // after a resume: weights that other ranks commit; empty where there are none
  Program decode;                   // generation: one position
  bool updates_before_use = false;  // of the step before, in the steady step
};

struct Refusal {
  Tier tier{};
  std::uint64_t missing_bytes = 0;
  std::string why;         // what does not fit, and the largest consumers
  std::string suggestion;  // the nearest setting that would fit
};

// What a step's order and activations may be.
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
  std::optional<double> seconds = {};  // of a step; empty: it does not fit
};

// Of ranks with copies of their own: one average of their weights, the update that was pending included.
struct PlannedAverage {
  std::uint64_t every = 0;  // steps; 0: there are none
  double seconds = 0;
  Traffic traffic;                 // between tiers
  std::uint64_t summed_bytes = 0;  // of its all-reduces
  LinkBytes links;                 // between ranks
};

struct Plan {
  bool fits = false;
  Refusal refusal;  // when it does not

  StepMap::Options map;  // how the engine lays the model out
  Budget capacity;       // what it allocates: at most the budget
  std::uint32_t generations = 2;
  std::uint32_t prefetch_depth = 0, gather_ahead = 0;
  Programs programs;

  PerTier<std::uint64_t> peak_bytes{};      // reserved, over the whole run, as walked
  PerTier<std::uint64_t> smallest_bytes{};  // the smallest legal budgets of device and host
  std::vector<Traffic> step_traffic;        // of the steps, one by one: a fresh run moves exactly these bytes
  Traffic steady_traffic;                   // of the last of them
  LinkBytes steady_links;                   // the same between ranks, with a step's part of an average
  SimulatedTimes times;                     // of a steady step, in the mean, and its part of an average
  PlannedAverage average;
  // A commit drains the pending update and brings to disk what is not there yet: its bytes, and its time until the last of them
  // is written (the syncs come on top), of the last commit walked; how many a run makes.
  Traffic commit_traffic;
  double commit_seconds = 0;
  std::uint64_t commits = 0;
  double floor_s = 0;   // compute alone: no plan can be faster on this machine
  std::string binding;  // what binds: "compute", "read", "write", "upload", "download"
  std::string link;     // the busiest link where something stalls, else empty: "PCIe", "host memory", "disk"
  StepChoice choice;
  std::vector<TriedChoice> tried;  // what it was compared with; empty where nothing was open
  std::uint64_t state_bytes = 0, parameters = 0;
};

// The plan of data rank 0. What it decides (chunks, tiers, distances) holds for all ranks: their programs differ in which chunk
// of a group is their own.
// With a pool, what is compared is walked side by side; what is decided does not depend on it.
Plan plan(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr);
// The same for another rank. Throws DoesNotFit when its walk, against all likelihood, needs more than rank 0's.
Plan for_rank(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
              std::uint32_t rank);

// Of a steady step, with its part of an average.
Traffic traffic_of_step(const Plan& plan);

// Times a plan that fits again, on better known costs (measure_costs.h). What it decided stays as it is.
void retime(Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile, const CostModel& costs);

// Spans of a simulated steady step, in the form that a real run writes.
void trace_step(const Plan& plan, const Model& model, const PlanRequest& request, const MachineProfile& profile,
                const CostModel& costs, Trace& trace);

// How a request lays the model out with its updates in that place.
StepMap::Options map_options(const Model& model, const PlanRequest& request, const MachineProfile& profile,
                             const UpdatePlace& update);
// Commits take of the disk what they need, where it is no tier.
Budget with_room_for_commits(Budget budget);

// Micro-batches that a data rank evaluates in one program: one, or in a pipeline, which they fill, as many as a step has, or as
// in no more such programs do.
std::uint32_t evaluated_at_once(const PlanRequest& request);

// The programs of a request for a laid-out model, checked.
Programs write_programs(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead = 0);

}  // namespace terrace
