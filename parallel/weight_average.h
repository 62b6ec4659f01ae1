// The mean of the ranks' weights, chunk by chunk, for ranks that update copies of their own (local SGD).
//
//   mean = (((w₀ + w₁) + w₂) + …) ÷ ranks     in fp32, fp64 for fp64 weights; bf16 is widened before and rounded once after
//
// A program visits a chunk and fills it, one after the other: what was read is averaged when the first of it is to be written.
//
// Owner:   whoever runs the program; borrows communicator and device. Holds one chunk's weights.
// Threads: the stream's that visits and fills. Errors: those of the communicator.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/core/tensor.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace {

class WeightAverage {
 public:
  WeightAverage(Communicator& ranks, Device& host);
  void read(const TensorView& weights);   // visited, in ascending order
  void write(const TensorView& weights);  // filled, in the same order

 private:
  template <class Wide>
  void divide();
  void average();

  Communicator& ranks_;
  const std::unique_ptr<Stream> stream_;
  std::vector<std::byte> numbers_;
  DType dtype_ = DType::fp32;
  std::size_t written_ = 0;  // bytes
  bool averaged_ = false;
};

}  // namespace terrace
