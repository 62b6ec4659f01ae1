// Passes: pure functions that rewrite a program. Applied in this order: recompute, reductions, norms, tied gradients,
// gathers, updates, offloads, prefetches.
#pragma once

#include <cstdint>

#include <terrace/parallel/program.h>
#include <terrace/parallel/step_map.h>

namespace terrace {

// A recomputation before every backward of a layer that is recomputed.
Program with_recompute(const Program& program, const StepMap& map);
// Behind every forward of a layer that offloads: what it left goes to the host. Behind the checker, which it does not concern.
Program with_offloads(const Program& program, const StepMap& map);
// Between data ranks: a layer's gradient is reduced after its last backward, or after each where gradients are folded one by
// one. What is folded so is given up behind its reduction: `beside_next` puts that behind the next backward of another layer,
// which then has a place of its own for its gradient, and does not wait until this one's is free. Where an order runs in two
// directions, it has placed the reductions itself, each for all groups of its layer, which are told apart here.
Program with_reductions(const Program& program, const StepMap& map, bool beside_next = false);
// When a layer's gradient is complete: its share of the global norm (and the sum of a tied tensor's uses). Behind a reduction
// it stands after the next layer's backward, so that one overlaps with the other; in a pipeline behind the rank's last one.
Program with_norms(Program program, const StepMap& map);
// Where a tied layer is on another rank of the pipeline than the layer that declares its weights: its part of their gradient
// goes there, once a step. Behind the norms, before which it is added.
Program with_tied_gradients(const Program& program, const StepMap& map);
// Where weights are sharded: each stretch of a layer's actions gets its weights gathered `ahead` layer actions before it, and
// released behind it. Before the updates, which then come before the gathers; of an asynchronous order behind its versions,
// each of which is gathered for itself, from kept shards or behind the update that makes it.
Program with_gathers(const Program& program, const StepMap& map, std::uint32_t ahead);
// Where the updated weights are everybody's, each update is followed by the gather that makes them so; where another rank of
// the pipeline has a copy of them, by the message that brings them there, which there is the copy's update. in_backward: a
// layer's chunks are updated right after its norm. before_use: the step starts with the update that the step before has left
// pending, each layer's chunks just before the layer's first use; none: the first step of such a run; all: the pending update
// alone, behind what the program has. Behind the action that has new weights, of a layer whose weights another rank has a copy
// of: its message, at this end.
void add_weight_messages(Program& program, const StepMap& map, const Action& after);
// One update, with all that goes before and behind it: what ranks prepare and exchange, messages, gathers.
void add_update(Program& program, const StepMap& map, const Action& update);
// after_verdict is asynchronous_passes.h's.
enum class Updates : std::uint8_t { none, in_backward, before_use, all, after_verdict };
Program with_updates(Program program, const StepMap& map, Updates updates);
// Prefetches `depth` layer actions ahead (a layer's chunk updates count with the action beside them); never before the last
// action that writes the chunk, never twice between two uses. What an action overwrites on the device wants a place, at most
// four layer actions ahead. 0: none, everything is fetched, and others make way, when it is needed.
Program with_prefetches(Program program, const StepMap& map, std::uint32_t depth);

}  // namespace terrace
