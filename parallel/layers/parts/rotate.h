// Rotary positions of the heads of q and k, which are adjacent in rows of q, k and v.
//
// Threads, errors: as Layer.
#pragma once

#include <cstdint>

#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

// Rotates q and k of a block to their positions, or back, if the block rotates any. The first row is at `first_position`.
void rotate_heads(LayerContext& ctx, const Transformer& config, std::int64_t block, TensorView qkv, std::int64_t first_position,
                  bool inverse);

}  // namespace terrace::layers
