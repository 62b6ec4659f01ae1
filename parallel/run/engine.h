// The engine of one rank: arenas, store, mover, residency and executor, built from a plan and destroyed in reverse.
//
//   Plan p = plan(model, request, profile);
//   Engine engine(model, p, {.device = device, .store = {.paths = {"/nvme"}}, .optimizer = optimizer});
//   engine.fill(init);
//   for (…) { running::StepResult r = engine.step(input); }
//   engine.commit(step, payload);
//
// With several ranks, each rank has its own engine and plan, and all make the same calls in the same order: constructors,
// fills, steps, evaluations, visits and commits wait for each other. The ranks of the communicator are those of the plan's mesh
// (mesh.h). The loss and norm of a step cover the micro-batches of all ranks, those of an evaluation only its data
// rank. Every rank visits all weights.
//
// Owner:   main. Threads: all calls from the rank thread.
// Errors:  see Executor. With Options::resume, the constructor throws Error(ErrorKind::corrupt) if the stored state is damaged,
//          and Error(ErrorKind::refused) if it does not fit the model.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/base/trace.h>
#include <terrace/core/device/device.h>
#include <terrace/offload/io/io_engine.h>
#include <terrace/offload/store/chunk_store.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/parallel/run/executor.h>

namespace terrace {

class Engine {
 public:
  struct Options {
    Device* device = nullptr;        // borrowed
    ChunkStore::Options store = {};  // needs a path; the constructor makes or opens it, with the plan's capacity
    bool resume = false;             // continue from the store's last commit
    // Continue from the stores of a run that was laid out for other ranks: a new `store` is made and begins with their last
    // common commit (reshard.h). The old stores are not changed.
    std::vector<ChunkStore::Options> reshard_from = {};
    const Optimizer* optimizer = nullptr;  // borrowed
    Communicator* communicator = nullptr;  // of all ranks, borrowed; may be null for one rank
    Trace* trace = nullptr;                // borrowed, may be null
    // Tests inject faults here.
    std::function<std::unique_ptr<IoEngine>(const IoOptions&)> make_io = make_io_engine;
  };
  Engine(const Model& model, const Plan& plan, const Options& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Writes the initial master weights chunk by chunk, so that the whole model never exists outside its tiers. `weights.read` is
  // called from several threads of the pool at once.
  void fill(const WeightSource& weights);
  // Runs one step. Deferred updates stay pending until the next step() or drain(). If the plan updates before use, these are
  // all, and set_pending() says how they are applied; else StepInput::update says it, of those in the backward and of those
  // that are deferred.
  running::StepResult step(const StepInput& input);
  // Sets how the update of the step that just ran will be applied; `group_scales` as in StepInput. If the plan updates layers
  // early (early_updates.h), the step has applied StepInput::update to them; another update here takes that back first, and so
  // does a next call without set_pending().
  void set_pending(const UpdateStep& update, std::vector<double> group_scales = {});
  // Drops the update of the step that just ran, for example after a NaN: weights and states do not change. Only for plans
  // with deferred updates; the others have already applied it (std::logic_error).
  void skip();
  // Local SGD (DataParallel::local): replaces all weights by their mean over the ranks (weight_average.h). Each rank keeps its
  // own moments. Drains first; std::logic_error for other plans.
  void average();
  [[nodiscard]] std::uint64_t average_every() const;  // steps between averages, as planned; 0: none
  void drain();                                       // applies the pending update, if any
  // Loss sums of this rank's evaluated_at_once() micro-batches; drains first.
  std::vector<double> evaluate(const StepInput& micro_batches);
  [[nodiscard]] std::uint32_t evaluated_at_once() const;
  void decode(const StepInput& one_position);  // only with a plan for generation
  void visit(const WeightRange& weights);      // master weights in declared order; drains first
  void flush();                                // begins to write the state of a commit; drains first
  // Begins a commit of the present state; flushes first. Steps may go on while it is written, synced and published. Everything
  // that changes the state (an update, a fill, an average) finishes the commit first, and so does another commit. The
  // destructor finishes it too, so that it is on the disk even if an error ends the run, unless the disk itself fails.
  void begin_commit(std::uint64_t step, const std::string& payload);
  void finish_commit();  // waits until it is on the disk on all ranks; throws its error; else a no-op
  void commit(std::uint64_t step, const std::string& payload);  // both
  [[nodiscard]] std::optional<Commit> resumed() const;
  // True if a step's global norm is known before its updates: with deferred updates, or if an asynchronous pipeline clips.
  [[nodiscard]] bool knows_norms() const;

  [[nodiscard]] const StepMap& map() const;
  [[nodiscard]] const ChunkStore* store() const;                // for reading committed state; null without one
  void set_run_id(std::string id);                              // for the commits from now on
  [[nodiscard]] PerTier<std::uint64_t> peak_bytes() const;      // reserved in each tier so far
  [[nodiscard]] PerTier<std::uint64_t> reserved_bytes() const;  // now
  [[nodiscard]] memory::Traffic moved() const;                  // counted at completion

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
