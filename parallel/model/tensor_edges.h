// The exchanges of tensor ranks at the edges of a layer's call, as phases of the call (tensor_parallel.h). Between them, the
// layer computes with whole rows, and its y and dx are this rank's part of a sum.
//
//   without sequence parallelism   y and dx are summed in place
//   with it                        x and dy are gathered from the ranks' shares of the rows before the call; y and dx are
//                                  summed into this rank's share of the rows after it
//
// Threads: any. Errors: none.
#pragma once

#include <cstdint>

#include <terrace/core/math/dtype.h>
#include <terrace/parallel/mesh/tensor_parallel.h>
#include <terrace/parallel/model/call_steps.h>
#include <terrace/parallel/model/layer_context.h>
#include <terrace/parallel/model/phase.h>

namespace terrace {

struct TensorEdges {
  TensorParallel tensor;
  DType dtype = DType::fp32;  // of activations
  std::int64_t width = 0;
  bool has_x = true, has_y = true;  // the first layer has no x, the last one no y
  bool backward_reads_x = true;
  bool sums_y = true;  // false: the layer's y is whole already
};
// Adds the exchanges to the steps that the layer has described. One rank has none.
void add_tensor_edges(CallSteps& steps, LayerCall call, BatchShape shape, const TensorEdges& edges);

}  // namespace terrace
