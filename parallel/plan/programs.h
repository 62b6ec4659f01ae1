// The programs that one rank runs, written for a request and a laid-out model: an order of computations, rewritten by passes.
//
// Owner:   a plan. Pure. Threads: any. Errors: what the checker reports (checker.h).
#pragma once

#include <array>
#include <cstdint>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/program/layer_set.h>
#include <terrace/parallel/program/program.h>

namespace terrace::planning {

struct Programs {
  Program first;     // a step without a pending update
  Program steady;    // a step that applies the pending update, if it leaves one; else the same as `first`
  Program drain;     // the pending update alone
  Program evaluate;  // evaluated_at_once() micro-batches
  Program fill, visit;
  Program average;  // local SGD: visits and fills each chunk; otherwise empty
  Program gather;   // after a resume: fetches weights that other ranks committed; may be empty
  Program decode;   // generation: one position
  [[nodiscard]] std::array<const Program*, 9> all() const {
    return {&first, &steady, &drain, &evaluate, &fill, &visit, &average, &gather, &decode};
  }
  // The updates of a step that stay pending until the next one: of all layers, because they wait for the norm of all gradients
  // (then `deferred` is empty), or of these, because the backward would not hide them.
  bool updates_before_use = false;
  LayerSet deferred;
  [[nodiscard]] bool leaves_pending() const { return updates_before_use || !deferred.empty(); }
};

// The map options for a request's model on the first data rank, if updates run in the given place.
StepMap::Options map_options(const Model& model, const PlanRequest& request, const MachineProfile& profile,
                             const UpdatePlace& update);
// Micro-batches that a data rank evaluates in one program: 1 without a pipeline. In a pipeline, enough to fill it: at most as
// many as a step has, and no more than needed for the same number of programs.
std::uint32_t evaluated_at_once(const PlanRequest& request);

// The programs of a request for a laid-out model, checked.
Programs write_programs(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead = 0);

}  // namespace terrace::planning
