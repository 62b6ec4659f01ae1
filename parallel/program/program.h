// A program: a step of one rank as data. It is the list of actions that the executor runs and the simulator times.
//
// Orders write programs (orders.h), passes rewrite them (passes.h), the checker proves them (checker.h).
//
// Threads: values. Errors: parse() throws Error(ErrorKind::refused) with the line that it could not read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/memory/chunk.h>

namespace terrace {

enum class Op : std::uint8_t {
  forward,    // layer, micro_batch
  recompute,  // layer, micro_batch: the forward again, for what it saves
  backward,   // layer, micro_batch: both halves
  backward_input,
  backward_weight,
  norm,      // layer, run: its gradient is complete; adds tied uses, sums the squares
  update,    // layer, chunk of the layer
  prefetch,  // chunk id, tier
  fill,      // layer, chunk of the layer: weights get their initial values
  visit,     // layer, chunk of the layer: master weights are read (hash, export)
  evaluate,  // layer, micro_batch: a forward for the loss only
  decode,    // layer: one position of generation
  // Between data ranks. Here and above, `chunk` is the number of a group: one chunk of each rank, or a single chunk without
  // sharding.
  gather,   // layer, group: all-gathers the weights
  reduce,   // layer, micro_batch, group: sums gradients over the ranks; groups of the tied gradient are numbered after the
            // layer's own groups
  release,  // layer: frees its gathered weights
  offload,  // layer, micro_batch: moves the tensors kept for the backward to the host now, not only when room is needed
  // Between ranks of a pipeline: payload, layer, micro-batch or group, the other rank.
  send,
  receive,
  // If an optimizer works on whole layers and ranks share the layers, an update has three actions: prepare computes from this
  // rank's chunks, exchange combines the ranks' results, update does the rest.
  prepare,   // layer
  exchange,  // layer
  // For an order with updates within its program. keep: copies weights before their update if a later action still reads them.
  // verdict: shares the ranks' parts of a gradient's norm.
  keep,     // layer, group, copy
  verdict,  // update
  // Between tensor ranks (tensor_parallel.h).
  unify,  // layer: sums the complete gradients of parameters that several ranks hold
  // Early updates (early_updates.h).
  early,    // layer, chunk: keeps the state and updates it before the global norm is known
  restore,  // layer, chunk: the state from before its early update
};
inline constexpr std::size_t kOps = 25;
constexpr bool is_forward(Op op) { return op == Op::forward || op == Op::recompute || op == Op::evaluate; }
constexpr bool is_backward(Op op) { return op == Op::backward || op == Op::backward_input || op == Op::backward_weight; }
// Actions that compute with a layer's weights for a micro-batch.
constexpr bool is_layer_action(Op op) { return is_forward(op) || is_backward(op); }
constexpr bool has_phases(Op op) { return is_layer_action(op) || op == Op::decode; }
// Operations that are cut into numbered actions: one for each phase of a layer's call, or for each run of its gradient.
constexpr bool is_cut(Op op) { return has_phases(op) || op == Op::norm; }
// Actions that only place bytes: no lane computes them.
constexpr bool is_placement(Op op) { return op == Op::prefetch || op == Op::release || op == Op::offload; }
// The content of a message. The messages of one payload from one rank to another form a lane: they arrive in the order of
// sending, and lanes never wait for each other.
enum class Payload : std::uint8_t {
  activation,     // the layer's input for a micro-batch
  gradient,       // the gradient of that input
  weights,        // a group of weights that a layer of the receiver is tied to
  tied_gradient,  // a group of the tied layer's part of the gradient of these weights
};
constexpr bool is_per_micro_batch(Payload p) { return p == Payload::activation || p == Payload::gradient; }
constexpr bool is_message(Op op) { return op == Op::send || op == Op::receive; }
constexpr bool communicates(Op op) {
  return op == Op::gather || op == Op::reduce || op == Op::exchange || op == Op::verdict || op == Op::unify;
}
// Actions beside layer actions, for chunks or updates; a prefetch's distance does not count them.
constexpr bool is_chunk_action(Op op) {
  return op == Op::update || op == Op::fill || op == Op::visit || communicates(op) || op == Op::release || is_message(op) ||
         op == Op::prepare || op == Op::keep || op == Op::early || op == Op::restore;
}

struct Action {
  Op op = Op::forward;
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t chunk = 0;   // update, early, restore, fill, visit, gather, reduce: group within the layer; prefetch: the
                             // ChunkId; messages of weights and their gradients: group
  Tier tier = Tier::device;  // prefetch only
  Payload payload = Payload::activation;  // of messages
  std::uint32_t peer = 0;                 // of messages: the other rank of the pipeline
  std::uint32_t copy = 0;    // the weight version that is read, kept or released: 0: the updated weights, else a kept copy
  std::uint32_t update = 0;  // of norm, update, verdict: number of the update within the program
  std::uint32_t phase = 0;   // of layer actions and decode: the phase of the call (phase.h); of norm: the layout's run
  friend bool operator==(const Action&, const Action&) = default;
};

struct Program {
  std::uint32_t layers = 0, micro_batches = 0;
  std::vector<Action> actions;
  friend bool operator==(const Program&, const Program&) = default;
};

// One action a line: "forward l3 m0", "update l3 c1", "prefetch #118 host", "send activation l4 m0 r1"; with a kept copy of the
// weights "backward l3 m0 k1"; with one of several updates "update l3 c1 u2"; with a phase other than the first "forward l3 m0
// p1". A line that starts with '#' is a comment.
std::string to_text(const Action& action);
std::string to_text(const Program& program);
Program parse_program(std::string_view text);

}  // namespace terrace
