// Passes: pure functions that rewrite a program. Applied in this order: frozen, recompute, reductions, norms, tied gradients,
// unions, gathers, updates and phases (phase_pass.h), offloads, prefetches.
#pragma once

#include <cstdint>
#include <utility>

#include <terrace/parallel/map/step_map.h>
#include <terrace/parallel/program/layer_set.h>
#include <terrace/parallel/program/program.h>

namespace terrace::passes {

// Leaves out actions for gradients that are not needed: the backwards of layers below the first one that trains, the weight
// halves of frozen layers, and their messages and reductions.
Program without_frozen(const Program& program, const StepMap& map);
// Adds a recomputation before every backward of a layer that recomputes.
Program with_recompute(const Program& program, const StepMap& map);
// Adds an offload after every forward of a layer that offloads: its kept tensors go to the host. Runs after the checker, which
// ignores offloads.
Program with_offloads(const Program& program, const StepMap& map);
// Adds reductions between data ranks: of a layer's gradient after its last backward, or after each backward if gradients are
// folded one by one (then the gradient is freed after its reduction). With `beside_next`, a reduction comes after the next
// backward of another layer, whose gradient has a separate place, so that the two can overlap. An order in two directions
// contains its reductions already, each for all groups of its layer; this pass splits them into groups.
Program with_reductions(const Program& program, const StepMap& map, bool beside_next = false);
// Adds a norm once a layer's gradient is complete: it computes the layer's share of the global norm (and sums a tied tensor's
// uses). If the gradient is reduced, the norm comes after the next layer's backward, so that reduction and backward overlap; in
// a pipeline, after the rank's last backward.
Program with_norms(Program program, const StepMap& map);
// If a tied layer and the layer that declares its weights are on different ranks of the pipeline, the tied layer's part of the
// gradient is sent to the declaring layer's rank once a step. Applied after with_norms(); the part is added before the norm.
Program with_tied_gradients(const Program& program, const StepMap& map);
// If tensor ranks hold parameters of a layer in common, unifies its gradient just before its norm.
Program with_unions(const Program& program, const StepMap& map);
// For sharded weights: before each run of consecutive actions of a layer, its weights are gathered `ahead` layer actions early,
// and after the run they are released. Applied before with_updates(), which puts updates before the gathers. For an
// asynchronous order it is applied after with_versions(): each weight version is gathered separately, from kept shards or after
// the update that makes it.
Program with_gathers(const Program& program, const StepMap& map, std::uint32_t ahead);
// If another rank of the pipeline has a copy of the layer's weights, adds this rank's end of the message with the new weights.
// `after`: the action that makes them.
void add_weight_messages(Program& program, const StepMap& map, const Action& after);
// Adds one update, with its prepare and exchange before it and its messages and gathers after it.
void add_update(Program& program, const StepMap& map, const Action& update);
// The places that with_updates() gives to updates. in_backward: a layer's chunks are updated right after its norm. before_use
// (deferred): the step applies the update that the previous step left pending; each layer's chunks are updated `ahead` layer
// actions before the layer's first use (0 for a program with gathers).
// none: no updates, for the first step of a run with before_use. all: the pending update alone, after the program's other
// actions. after_verdict: see asynchronous_passes.h. If every rank needs the updated weights, a gather follows each update; a
// copy of the weights on another rank of the pipeline is updated by a message.
// early: like in_backward, before the global norm is known (early_updates.h).
enum class Updates : std::uint8_t { none, in_backward, early, before_use, all, after_verdict };
// Gives updates to these layers.
Program with_updates(Program program, const StepMap& map, Updates updates, std::uint32_t ahead = 0,
                     const LayerSet& layers = LayerSet::all());
// For layers that are updated early: the update that the previous step left pending begins with the state from before, if the
// early update is taken back.
Program with_restores(const Program& program, const StepMap& map);
// When a step updates its layers: all of them as one word says, or those of a set as another one.
struct UpdateTimes {
  UpdateTimes(Updates all) : others(all) {}  // NOLINT(google-explicit-constructor)
  UpdateTimes(LayerSet some, Updates their, Updates rest) : set(std::move(some)), of_set(their), others(rest) {}
  [[nodiscard]] Updates of(std::uint32_t layer) const { return set.contains(layer) ? of_set : others; }
  LayerSet set;
  Updates of_set = Updates::none, others;
};
// Adds prefetches `depth` layer actions ahead (a layer's chunk updates count as one with the action beside them), but never
// before the last action that writes the chunk, and never twice between two uses. For a chunk that an action overwrites, the
// prefetch only reserves a place on the device, at most four layer actions ahead. Depth 0: no prefetches; chunks are fetched,
// and others evicted, on demand.
Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth);

}  // namespace terrace::passes
