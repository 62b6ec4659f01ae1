// A graph of cuDNN's operations on tensors of four dimensions. Virtual tensors are values between operations that never lie in
// memory; which are written down is the engine's choice.
//
// Owner:   its descriptors; the library must outlive it.
// Threads: one at a time. Errors: the descriptors'.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include <terrace/core/cuda/cudnn/descriptor.h>

namespace terrace::cuda::cudnn {

using Extents = std::array<std::int64_t, 4>;
struct TensorShape {
  Extents dims, strides;
};
// Rows of the last dimension, one after the other.
TensorShape contiguous(const Extents& dims);
TensorShape transposed(const TensorShape& shape);  // of the last two dimensions

class Graph {
 public:
  static constexpr std::int64_t kAligned = 16;  // bytes
  using Tensor = const Descriptor*;
  explicit Graph(const Library& library) : library_(library) {}

  // In memory; one number that is given by value.
  Tensor memory(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes = kAligned);
  Tensor value(std::int64_t id);
  Tensor between(const TensorShape& shape, DataType type = DataType::fp32);

  // Each gives back where its result is. All compute in fp32.
  Tensor matmul(Tensor a, Tensor b, Tensor c);
  Tensor pointwise(Pointwise mode, Tensor x, Tensor y) { return apply(mode, x, nullptr, nullptr, y, DataType::fp32); }
  Tensor pointwise(Pointwise mode, Tensor x, Tensor b, Tensor y) { return apply(mode, x, b, nullptr, y, DataType::fp32); }
  Tensor select(Tensor condition, Tensor x, Tensor otherwise, Tensor y) {
    return apply(Pointwise::select, x, otherwise, condition, y, DataType::fp32);
  }
  Tensor index(Tensor like, int axis, Tensor y);
  // Over the dimensions in which y is narrower, in one order.
  Tensor reduce(Reduction by, Tensor x, Tensor y);
  Tensor reshape(Tensor x, Tensor y);

  // Of all operations so far, on a GPU by its handle; without one for a device that is only described.
  [[nodiscard]] Descriptor finish(void* handle) const;

 private:
  Tensor tensor(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes, bool is_virtual,
                bool is_value);
  Tensor apply(Pointwise mode, Tensor x, Tensor b, Tensor t, Tensor y, DataType precision, int axis = -1);
  Descriptor& make(Kind kind) { return objects_.emplace_back(library_, kind); }

  const Library& library_;
  std::int64_t next_id_ = 1000;  // of virtual tensors
  std::deque<Descriptor> objects_;
  std::vector<const Descriptor*> operations_;
};

}  // namespace terrace::cuda::cudnn
