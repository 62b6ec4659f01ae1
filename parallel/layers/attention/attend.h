// Attention within whole sequences, separately for each document (documents.h). A document is computed as a
// sequence of its own length: its result is the same as if it were alone, and nothing is computed between documents.
//
// The log-sum-exps of a document are contiguous, [heads, positions]; documents follow in order.
//
// Threads, errors: as Layer.
#pragma once

#include <cstdint>

#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

struct SequenceAttention {
  AttentionShape shape;
  std::int64_t window = 0;  // number of positions that a position attends to, including itself; 0: all before it
};

// Like Math::attention() and attention_grad().
void attend(LayerContext& ctx, const SequenceAttention& attention, TensorView out, TensorView lse, TensorView qkv);
void attend_grad(LayerContext& ctx, const SequenceAttention& attention, TensorView dqkv, TensorView dout, TensorView out,
                 TensorView lse, TensorView qkv);

// Twice the keys that a query of a sequence meets on average.
double pairs_twice(std::int64_t seq, std::int64_t window);

}  // namespace terrace::layers
