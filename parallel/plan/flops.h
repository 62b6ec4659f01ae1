// Matrix FLOPs of a step on one rank.
//
// Pure. Threads: any.
#pragma once

#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/program/program.h>

namespace terrace::planning {

// `model`: each layer's forward, and twice as much for its backward. `with_recomputation`: the same plus recomputed forwards.
struct Flops {
  double model = 0, with_recomputation = 0;
};
Flops flops_of(const Model& model, const BatchShape& shape, const Program& step);

}  // namespace terrace::planning
