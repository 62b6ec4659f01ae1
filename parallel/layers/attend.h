// Attention to whole sequences that a rank has, each document by itself (documents.h): a document is computed as a sequence of
// its own length, so that nothing is computed between documents, and its result is that of the document alone.
//
// The log-sum-exps of a document lie together, [heads, positions], documents in their order.
//
// Threads, errors: as Layer.
#pragma once

#include <cstdint>

#include <terrace/parallel/layer.h>

namespace terrace::layers {

struct SequenceAttention {
  AttentionShape shape;
  std::int64_t window = 0;          // a position attends to so many, itself among them; 0: to all before it
  std::int64_t first_sequence = 0;  // of the micro-batch, where the rank does not have them all
};

// As Math::attention() and attention_grad().
void attend(LayerContext& ctx, const SequenceAttention& attention, TensorView out, TensorView lse, TensorView qkv);
void attend_grad(LayerContext& ctx, const SequenceAttention& attention, TensorView dqkv, TensorView dout, TensorView out,
                 TensorView lse, TensorView qkv);

// Twice the keys that a query of a sequence meets on average.
double pairs_twice(std::int64_t seq, std::int64_t window);

}  // namespace terrace::layers
