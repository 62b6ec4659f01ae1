// What a layer's call gets: the shape and settings of a micro-batch, and its tensors.
//
// Owner:   the engine makes them for each phase that it runs. Threads: values, used on the rank thread.
#pragma once

#include <cstdint>
#include <span>

#include <terrace/core/math/math.h>
#include <terrace/core/math/tensor.h>
#include <terrace/parallel/model/documents.h>
#include <terrace/parallel/model/phase.h>

namespace terrace {

using Tensors = std::span<const TensorView>;

struct BatchShape {
  std::int64_t batch = 0, seq = 0;  // sequences in a micro-batch, positions of a sequence on this rank
  [[nodiscard]] std::int64_t tokens() const { return batch * seq; }
};

struct LayerContext {
  Stream& stream;
  Math& math;
  BatchShape shape;
  TensorView tokens;      // [N] i32, for the first layer
  TensorView targets;     // [N] i32, or kNoTarget, or kPadding (core/math/targets.h)
  double loss_scale = 1;  // 1 ÷ target tokens of the global batch, times the scale of gradients
  TensorView loss;        // [1] fp64: this micro-batch's sum of token losses (overwritten), for the last layer
  TensorView scratch;     // [bytes] as i32 elements, 4,096-aligned, of Phase::scratch_bytes; contents undefined
  TensorView skip = {};   // [N, C], for a layer that skips: the result of that earlier layer; empty in the weight half
  bool evaluate = false;  // last layer: loss only
  std::uint32_t phase = kAllPhases;
  Half half = Half::both;     // of a backward: what the call computes. A phase of one half runs only in calls that compute it.
  std::int64_t position = 0;  // of a generation: the position in its sequence
  TensorView report = {};     // [report_size] fp64, in memory that the host reaches: one for each micro-batch
  model::Documents documents = {};  // of this micro-batch's sequences, at all positions of all context ranks
  double token_scale = 1;           // 1 ÷ tokens of the global batch without padding, times the scale of gradients
};

// The tensors of a call; all contiguous. A tensor that the phase does not use is empty. If a parameter is cut into tiles, its
// tensor is the phase's tile.
struct LayerTensors {
  Tensors weights;  // in params() order, compute dtype
  // In params() order, gradient dtype; empty in forward. An empty view: the parameter is frozen, and nothing is computed for
  // it.
  Tensors gradients;
  Accumulate accumulate = Accumulate::no;  // into gradients: no for the first micro-batch
  TensorView x, y;                         // input and output; x is empty for the first layer, y for the last
  Tensors saved;          // in the order of LayerFacts::saved: written by forward, read by backward; in a generation, the cache
  TensorView dy, dx;      // backward: gradients of y and of x (overwritten); dx is empty if x is, dy if y is
  TensorView dskip = {};  // input half of a layer with a skip: gradient of ctx.skip (overwritten)
  Tensors carried;        // in the order of LayerFacts::carried: written by Half::input, read by Half::weight
  Tensors work = {};      // in the order of the call's work()
};

}  // namespace terrace
