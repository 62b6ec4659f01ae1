// Matrix FLOPs of a step on one rank.
//
// Threads: pure.
#pragma once

#include <terrace/parallel/layer.h>
#include <terrace/parallel/program.h>

namespace terrace {

// The model's own: a layer's forward, and twice as much for its backward. With what is computed again on top.
struct Flops {
  double model = 0, with_recomputation = 0;
};
Flops flops_of(const Model& model, const BatchShape& shape, const Program& step);

}  // namespace terrace
