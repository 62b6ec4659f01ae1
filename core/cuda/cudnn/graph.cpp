#include <terrace/core/cuda/cudnn/graph.h>

#include <utility>

namespace terrace::cuda::cudnn {

TensorShape contiguous(const Extents& d) { return {d, {d[1] * d[2] * d[3], d[2] * d[3], d[3], 1}}; }

TensorShape transposed(const TensorShape& shape) {
  auto [dims, strides] = shape;
  std::swap(dims[2], dims[3]), std::swap(strides[2], strides[3]);
  return {dims, strides};
}

Graph::Tensor Graph::tensor(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes,
                            bool is_virtual, bool is_value) {
  return &make(Kind::tensor)
              .set(Name::tensor_type, type)
              .set(Name::tensor_dimensions, shape.dims)
              .set(Name::tensor_strides, shape.strides)
              .set(Name::tensor_id, id)
              .set(Name::tensor_alignment, aligned_bytes)
              .set(Name::tensor_is_virtual, is_virtual)
              .set(Name::tensor_is_value, is_value)
              .finalize();
}

Graph::Tensor Graph::memory(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes) {
  return tensor(id, shape, type, aligned_bytes, false, false);
}
Graph::Tensor Graph::value(std::int64_t id) {
  return tensor(id, contiguous({1, 1, 1, 1}), DataType::fp32, kAligned, false, true);
}
Graph::Tensor Graph::between(const TensorShape& shape, DataType type) {
  return tensor(next_id_++, shape, type, kAligned, true, false);
}

Graph::Tensor Graph::matmul(Tensor a, Tensor b, Tensor c) {
  const auto& description = make(Kind::matmul).set(Name::matmul_precision, DataType::fp32).finalize();
  operations_.push_back(&make(Kind::matmul_operation)
                             .set(Name::matmul_a, *a)
                             .set(Name::matmul_b, *b)
                             .set(Name::matmul_c, *c)
                             .set(Name::matmul_description, description)
                             .finalize());
  return c;
}

Graph::Tensor Graph::apply(Pointwise mode, Tensor x, Tensor b, Tensor t, Tensor y, DataType precision, int axis) {
  auto& description = make(Kind::pointwise).set(Name::pointwise_mode, mode).set(Name::pointwise_precision, precision);
  if (axis >= 0) description.set(Name::pointwise_axis, static_cast<std::int64_t>(axis));
  description.finalize();
  auto& operation = make(Kind::pointwise_operation).set(Name::pointwise_description, description).set(Name::pointwise_x, *x);
  if (b) operation.set(Name::pointwise_b, *b);
  if (t) operation.set(Name::pointwise_t, *t);
  operations_.push_back(&operation.set(Name::pointwise_y, *y).finalize());
  return y;
}

Graph::Tensor Graph::index(Tensor like, int axis, Tensor y) {
  return apply(Pointwise::index, like, nullptr, nullptr, y, DataType::fp32, axis);
}

Graph::Tensor Graph::reduce(Reduction by, Tensor x, Tensor y) {
  const auto& description = make(Kind::reduction)
                                .set(Name::reduction_operator, by)
                                .set(Name::reduction_precision, DataType::fp32)
                                .set(Name::reduction_is_deterministic, true)
                                .finalize();
  operations_.push_back(&make(Kind::reduction_operation)
                             .set(Name::reduction_x, *x)
                             .set(Name::reduction_y, *y)
                             .set(Name::reduction_description, description)
                             .finalize());
  return y;
}

Graph::Tensor Graph::reshape(Tensor x, Tensor y) {
  operations_.push_back(&make(Kind::reshape_operation).set(Name::reshape_x, *x).set(Name::reshape_y, *y).finalize());
  return y;
}

Descriptor Graph::finish(void* handle) const {
  Descriptor graph(library_, Kind::graph);
  if (handle) graph.set(Name::graph_handle, Type::handle, 1, &handle);
  graph.set(Name::graph_operations, operations_).finalize();
  return graph;
}

}  // namespace terrace::cuda::cudnn
