// A training step as data: for one rank, the list of actions that its executor walks and its simulator times.
//
// Orders write programs (orders.h), passes rewrite them (passes.h), the checker proves them (checker.h).
//
// Threads: values. Errors: parse() throws Error(Exit::usage) with the line that it could not read.
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
  norm,      // layer: the last gradient is there: add tied uses, sum its squares
  update,    // layer, chunk of the layer
  prefetch,  // chunk id, tier
  fill,      // layer, chunk of the layer: weights are given their first content
  visit,     // layer, chunk of the layer: master weights are read (hash, export)
  evaluate,  // layer, micro_batch: the forward for its loss alone
  decode,    // layer: one position of generation
  // Between data ranks; chunks count groups here and above: one chunk of each rank, one alone where nothing is sharded.
  gather,   // layer, group: every rank's chunk of the weights becomes everybody's
  reduce,   // layer, micro_batch, group: gradients are added up over the ranks; behind the layer's groups, its tied gradient's
  release,  // layer: its gathered weights are given up
  offload,  // layer, micro_batch: what its forward left for its backward goes to the host now, not when room is needed
  // Between ranks of a pipeline: payload, layer, micro-batch or group, the other rank.
  send,
  receive,
  // An update by an optimizer that sees whole layers, where ranks share them, in three: what each makes of its chunks, what
  // they exchange of that, and the update with the rest.
  prepare,   // layer
  exchange,  // layer
  // Where an order updates within its program: weights that a later task still reads are kept before they are updated, and what
  // every rank has of a gradient's norm becomes everybody's.
  keep,     // layer, group, copy
  verdict,  // update
};
// What only says where bytes are to be: no lane computes it.
constexpr bool is_placement(Op op) { return op == Op::prefetch || op == Op::release || op == Op::offload; }
// What a message carries. Messages of one payload from one rank to another are a lane: they arrive in the order of sending, and
// lanes never wait for each other.
enum class Payload : std::uint8_t {
  activation,     // the layer's input for a micro-batch
  gradient,       // the gradient of that input
  weights,        // a group of weights that are tied to a layer of the receiver's
  tied_gradient,  // a group of what the tied layer adds to these weights' gradient
};
constexpr bool is_per_micro_batch(Payload p) { return p == Payload::activation || p == Payload::gradient; }
constexpr bool is_message(Op op) { return op == Op::send || op == Op::receive; }
constexpr bool communicates(Op op) { return op == Op::gather || op == Op::reduce || op == Op::exchange || op == Op::verdict; }
// What stands beside layer actions and is no step of its own in a prefetch's distance: a chunk's work, or an update's.
constexpr bool is_chunk_action(Op op) {
  return op == Op::update || op == Op::fill || op == Op::visit || communicates(op) || op == Op::release || is_message(op) ||
         op == Op::prepare || op == Op::keep;
}

struct Action {
  Op op = Op::forward;
  std::uint32_t layer = 0;
  std::uint32_t micro_batch = 0;
  std::uint32_t chunk = 0;   // update, fill, visit, gather, reduce: group within the layer; prefetch: the ChunkId; messages of
                             // weights and their gradients: group
  Tier tier = Tier::device;  // prefetch only
  Payload payload = Payload::activation;  // of messages
  std::uint32_t peer = 0;                 // of messages: the other rank of the pipeline
  std::uint32_t copy = 0;    // which of a layer's weights is read, kept or released: 0 those that are updated, else a kept copy
  std::uint32_t update = 0;  // of norm, update, verdict: which one of the program's
  friend bool operator==(const Action&, const Action&) = default;
};

struct Program {
  std::uint32_t layers = 0, micro_batches = 0;
  std::vector<Action> actions;
  friend bool operator==(const Program&, const Program&) = default;
};

// One action a line: "forward l3 m0", "update l3 c1", "prefetch #118 host", "send activation l4 m0 r1"; with a copy of the
// weights or one of several updates "backward l3 m0 k1", "update l3 c1 u2"; '#' at a line's start is a comment.
std::string to_text(const Action& action);
std::string to_text(const Program& program);
Program parse_program(std::string_view text);

}  // namespace terrace
