// The input of plan(): the shape, budgets and settings of a run, and the rank to plan for.
//
// Owner:   the caller. Threads: values. Errors: none here; check_request.h refuses settings that contradict each other.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <terrace/memory/tier.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/mesh/data_parallel.h>
#include <terrace/parallel/mesh/mesh.h>
#include <terrace/parallel/mesh/state_sharding.h>
#include <terrace/parallel/model/activations.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/model/param_group.h>
#include <terrace/parallel/model/step_shape.h>
#include <terrace/parallel/model/update_place.h>
#include <terrace/parallel/pipeline/pipeline.h>

namespace terrace {

enum class Order : std::uint8_t { horizontal, vertical, group_vertical };
inline constexpr std::uint32_t kAutoDepth = ~0U;

struct PlanRequest {
  StepShape shape = {};
  Budget budget = {};
  std::string recipe = "fp32";                                                          // of recipes(), with the model's dtype
  std::vector<ChunkKind> states = {ChunkKind::first_moment, ChunkKind::second_moment};  // Optimizer::states()
  std::optional<LayerUnit> layer_unit = {};                                             // Optimizer::layer_unit()
  std::vector<ParamGroup> param_groups = {};  // rates, decays and clip norms of parameters by name
  std::vector<std::string> freeze = {};       // patterns of parameters that never change (freeze.h)
  bool disk_tier = false;                     // false: the disk holds commits only
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
  // Without updates_before_use: the number of layers that are updated before their next use all the same, because the backward
  // cannot hide all updates (layer_set.h says which layers). Empty: chosen.
  std::optional<std::uint32_t> deferred = 0;
  // With updates_before_use: the number of layers that are updated early (early_updates.h). Empty: chosen.
  std::optional<std::uint32_t> early = 0;
  std::uint32_t prefetch_depth = kAutoDepth;
  std::uint64_t chunk_elements = 0;   // 0: the planner searches for the best size
  std::int64_t decode_positions = 0;  // not 0: generation instead of training, with caches of this size; shape {1, 1}
  bool evaluates_only = false;        // evaluations instead of training, of one micro-batch at a time
  // For generation and evaluation. true: fill() writes the weights in the dtype that layers read, and there is no other state.
  // false: the weights are read from a training run's store.
  bool weights_given = false;
  // The life of the run, which the plan walks as the trainer will: the number of steps (0: a few), evaluations and commits
  // after every n-th step (0: never), and one of each at the end. The plan skips the middle of a very long life.
  std::uint64_t steps = 0, evaluate_every = 0, evaluate_batches = 0, commit_every = 0;
  bool evaluate_first = false;      // before the first step, too
  std::uint64_t visits = 1;         // how often all weights are read at the end: for their hash, and to save them
  std::uint64_t average_every = 0;  // steps between the averages of local SGD (DataParallel::local)
  bool commits_beside = false;      // a commit before the end is written while the next step is computed
  std::uint32_t generations = 2;    // of state on disk; with one, nothing can be committed before the end
  bool commits = true;              // false: no commits, not even at the end; the disk holds no more than its tier
  // Each rank of a pipeline has its own plan: of its layers, in the order of the pipeline's schedule instead of `order`.
  std::optional<pipeline::Pipeline> pipeline = {};
  // The ranks of the run; `budget` and `shape` are each rank's. With a pipeline, mesh.pp is the number of its ranks.
  Mesh mesh = {};
  DataParallel data = {};  // how the data ranks share the state
  // With sharded weights: layer actions between a gather and its use. With sharded gradients: if not 0, a layer's gradients are
  // reduced while the next layer's backward runs, which then has a separate place.
  std::uint32_t gather_ahead = kAutoDepth;
  // A rank of the mesh; it selects the layers, and the part of them, to plan for. plan() plans for the first
  // data rank that has these; for_rank() plans for this rank itself.
  std::uint32_t rank = 0;
  // true: a plan that does not fit searches, with several walks, for a budget that would fit. false: it only says what is
  // missing.
  bool advises = true;
  // Called before every program is walked; if it returns true, plan() throws Abandoned. May be called on several threads at
  // once.
  std::function<bool()> abandons = {};

  [[nodiscard]] bool trains() const { return decode_positions == 0 && !evaluates_only; }
  [[nodiscard]] bool two_directions() const { return pipeline && pipeline->schedule.placement.rank_of.size() > 1; }
  // An early update can be taken back only if no other rank has its result, and chunk by chunk.
  [[nodiscard]] bool may_update_early() const {
    return updates_before_use && !pipeline && !layer_unit && !sharding().gathers_updates();
  }
  [[nodiscard]] StateSharding sharding() const { return {data, mesh, rank, two_directions()}; }
};

// Thrown by plan() if PlanRequest::abandons returns true. There is then no plan.
struct Abandoned : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return "the plan was abandoned"; }
};

// The first rank of the stage that has the model's part of the layers.
std::uint32_t first_rank(const Model& model, const PlanRequest& request, std::uint32_t stage = 0);

// If the disk is not a tier, it has unlimited room for commits.
inline Budget with_room_for_commits(Budget budget) {
  if (budget.disk == 0 || budget.commit_only) budget.disk = kUnlimited;
  return budget;
}

}  // namespace terrace
