// A transformer as a chain of layers:
//
//   embedding, then for each block attention and mlp (or experts), then head
//
// With skip connections, the result of block i is added to the input of block n − 1 − i (branch/residual_skip.cpp).
//
// Owner:   the caller owns the model, the model its layers; every layer is a GenerativeLayer.
// Threads: as Layer.
// Errors:  as transformer.h.
#pragma once

#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>

namespace terrace::layers {

Model make_transformer(Transformer transformer);

}  // namespace terrace::layers
