// Passes: pure functions that rewrite a program. Applied in this order: frozen, recompute, reductions, norms, tied gradients,
// gathers, updates, offloads, prefetches.
#pragma once

#include <cstdint>

#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// Leaves out what computes and carries gradients that nothing needs: the backward of layers below the first that trains, and
// the weight half of layers that are frozen.
Program without_frozen(const Program& program, const StepMap& map);
// Adds a recomputation before every backward of a layer that recomputes.
Program with_recompute(const Program& program, const StepMap& map);
// Adds an offload after every forward of a layer that offloads: its kept tensors go to the host. Runs after the checker, which
// does not look at offloads.
Program with_offloads(const Program& program, const StepMap& map);
// Between data ranks: a layer's gradient is reduced after its last backward, or after each one if gradients are folded one by
// one. A gradient that is folded in this way is freed after its reduction. `beside_next` puts the reduction after the next
// backward of another layer: that backward gets a separate place for its gradient and does not wait until this one is free. An
// order in two directions places the reductions itself, each for all groups of its layer; here they are split into groups.
Program with_reductions(const Program& program, const StepMap& map, bool beside_next = false);
// Adds a norm once a layer's gradient is complete: its share of the global norm (and the sum of a tied tensor's uses). After a
// reduction, the norm comes after the next layer's backward, so that the two overlap; in a pipeline, after the rank's last
// backward.
Program with_norms(Program program, const StepMap& map);
// If a tied layer is on another rank of the pipeline than the layer that declares its weights, its part of their gradient is
// sent there, once a step. Applied after with_norms(); the part is added before the norm.
Program with_tied_gradients(const Program& program, const StepMap& map);
// For sharded weights: each run of consecutive actions of a layer gets its weights gathered `ahead` layer actions before it,
// and released after it. Applied before the pass of the updates, which puts updates before the gathers. For an asynchronous
// order it is applied after with_versions(): each weight version is gathered separately, from kept shards or after the update
// that makes it.
Program with_gathers(const Program& program, const StepMap& map, std::uint32_t ahead);
// The messages of updated weights: if another rank of the pipeline has a copy of the layer's weights, adds this rank's end of
// the message after the action that makes the new weights.
void add_weight_messages(Program& program, const StepMap& map, const Action& after);
// Adds one update with its preparation and exchange before it, and its messages and gathers after it.
void add_update(Program& program, const StepMap& map, const Action& update);
// Where with_updates() places updates. in_backward: a layer's chunks are updated right after its norm. before_use (deferred):
// the step starts with the update that the previous step left pending, each layer's chunks `ahead` layer actions before the
// layer's first use (0 for a program with gathers).
// none: the first step of such a run. all: the pending update alone, after the program's other actions. after_verdict: see
// asynchronous_passes.h. If every rank needs the updated weights, a gather follows each update; a copy of the weights on
// another rank of the pipeline is updated by a message.
enum class Updates : std::uint8_t { none, in_backward, before_use, all, after_verdict };
Program with_updates(Program program, const StepMap& map, Updates updates, std::uint32_t ahead = 0);
// Adds prefetches `depth` layer actions ahead (a layer's chunk updates count as one with the action beside them), never before
// the last action that writes the chunk, never twice between two uses. A chunk that an action overwrites on the device only
// gets a place reserved, at most four layer actions ahead. Depth 0: no prefetches; chunks are fetched, and others evicted, when
// they are needed.
Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth);

}  // namespace terrace
