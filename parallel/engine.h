// The engine of one rank: arenas, store, mover, residency and executor, built from a plan and destroyed in reverse.
//
//   Plan p = plan(model, request, profile);
//   Engine engine(model, p, {.device = device, .store = {.paths = {"/nvme"}}});
//   engine.fill(init);
//   for (…) { StepResult r = engine.step(batch, update); }
//   engine.commit(step, payload);
//
// With several ranks each has an engine of its own plan, and all make the same calls in the same order: the constructor, fills,
// steps, evaluations, visits and commits wait for each other. Rank r of the communicator is data rank r mod d of pipeline rank
// r ÷ d. A step's loss and norm are those of all ranks' micro-batches, an evaluation's those of its data rank. Every rank
// visits all weights.
//
// Owner:   main. Threads: all calls from the rank thread.
// Errors:  see Executor; resume() throws Error(Exit::corrupt) or Error(Exit::usage) when the stored state does not fit the
// model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/trace.h>
#include <terrace/offload/chunk_store.h>
#include <terrace/offload/io_engine.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/executor.h>
#include <terrace/parallel/plan.h>

namespace terrace {

class Engine {
 public:
  struct Options {
    Device* device = nullptr;   // borrowed
    ChunkStore::Options store;  // capacity is the plan's; made, or opened, by the constructor
    bool resume = false;        // continue from the store's last commit
    // Continue from the stores of all ranks of a run that was laid out for other ranks: `store` is made anew and begins with
    // their last commit (reshard.h). They stay as they are.
    std::vector<ChunkStore::Options> reshard_from = {};
    const Optimizer* optimizer = nullptr;  // borrowed
    Communicator* communicator = nullptr;  // of all ranks, borrowed; may be null where there is one. See below
    Trace* trace = nullptr;                // borrowed, may be null
    // Where faults are put in.
    std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  };
  Engine(const Model& model, const Plan& plan, const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // First content of all master weights, chunk by chunk: the model never exists whole outside its tiers. `weights` is called
  // from the pool's threads, several at once.
  void fill(const WeightRange& weights);
  // One step. With updates before use, `update` belongs to the step before; it is kept pending until the next step() or
  // drain(): StepInput::update counts only for plans that update inside the backward.
  StepResult step(const StepInput& input);
  // The step that just ran is to be applied like this; `group_scales` as StepInput's.
  void set_pending(const UpdateStep& update, std::vector<double> group_scales = {});
  // The step that just ran is not to be applied: what a NaN has touched is dropped, weights and states stay as they were. Only
  // for plans with updates before use; others have applied it already (std::logic_error).
  void skip();
  // Of ranks that update copies of their own (DataParallel::local): all weights become the mean of the ranks'
  // (weight_average.h). Moments stay each rank's own. Drains first; std::logic_error for other plans.
  void average();
  void drain();  // applies the pending update, if any
  // Loss sums of this rank's evaluated_at_once() micro-batches; drains first.
  std::vector<double> evaluate(const StepInput& micro_batches);
  [[nodiscard]] std::uint32_t evaluated_at_once() const;
  void decode(const StepInput& one_position);                   // of a plan for generation
  void visit(const WeightRange& weights);                       // master weights in declared order; drains first
  void flush();                                                 // what a commit now would hold, onto the disk; drains first
  void commit(std::uint64_t step, const std::string& payload);  // flushes first
  [[nodiscard]] std::optional<Commit> resumed() const;

  [[nodiscard]] const StepMap& map() const;
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;      // reserved in each tier so far
  [[nodiscard]] PerTier<std::uint64_t> reserved_bytes() const;  // now
  [[nodiscard]] Traffic moved() const;                          // carried, counted at completion

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
