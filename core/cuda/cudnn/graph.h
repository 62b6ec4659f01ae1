// A graph of cuDNN's operations on tensors of four dimensions. Virtual tensors are values between operations that have no
// memory of the caller; the engine chooses which of them it stores.
//
// Owner:   owns its descriptors; the library must outlive it.
// Threads: one at a time. Errors: those of descriptors.
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
// Row-major strides without gaps.
TensorShape contiguous(const Extents& dims);
TensorShape transposed(const TensorShape& shape);  // swaps the last two dimensions

class Graph {
 public:
  static constexpr std::int64_t kAligned = 16;  // bytes
  using Tensor = const Descriptor*;
  explicit Graph(const Library& library) : library_(library) {}

  // memory(): a tensor in memory. value(): one number that is passed by value. between(): a virtual tensor.
  Tensor memory(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes = kAligned);
  Tensor value(std::int64_t id);
  Tensor between(const TensorShape& shape, DataType type = DataType::fp32);

  // Each returns the tensor that holds its result. All compute in fp32.
  Tensor matmul(Tensor a, Tensor b, Tensor c);
  Tensor pointwise(Pointwise mode, Tensor x, Tensor y) { return apply(mode, x, nullptr, nullptr, y, DataType::fp32); }
  Tensor pointwise(Pointwise mode, Tensor x, Tensor b, Tensor y) { return apply(mode, x, b, nullptr, y, DataType::fp32); }
  Tensor select(Tensor condition, Tensor x, Tensor otherwise, Tensor y) {
    return apply(Pointwise::select, x, otherwise, condition, y, DataType::fp32);
  }
  Tensor index(Tensor like, int axis, Tensor y);
  // Reduces over the dimensions in which y is smaller, in one order.
  Tensor reduce(Reduction by, Tensor x, Tensor y);
  Tensor reshape(Tensor x, Tensor y);

  // The graph of all operations so far, for the GPU of the handle; without a handle, for a device that is only described.
  [[nodiscard]] Descriptor finish(void* handle) const;

 private:
  Tensor tensor(std::int64_t id, const TensorShape& shape, DataType type, std::int64_t aligned_bytes, bool is_virtual,
                bool is_value);
  Tensor apply(Pointwise mode, Tensor x, Tensor b, Tensor t, Tensor y, DataType precision, int axis = -1);
  Descriptor& make(Kind kind) { return objects_.emplace_back(library_, kind); }

  const Library& library_;
  std::int64_t next_id_ = 1000;  // of the next virtual tensor
  std::deque<Descriptor> objects_;
  std::vector<const Descriptor*> operations_;
};

}  // namespace terrace::cuda::cudnn
