// The mean of the ranks' weights, chunk by chunk, for local SGD.
//
//   mean = (((w₀ + w₁) + w₂) + …) ÷ ranks     in fp32, fp64 for fp64 weights; bf16 is widened before and rounded once after
//
// On several machines, the sum is made in the order of comm/machines.h.
//
// The program visits each chunk and then fills it; the first write after the reads averages the chunk.
//
// Owner:   the engine; borrows communicator and device. Holds the weights of one chunk.
// Threads: the thread of the stream that visits and fills. Errors: those of the communicator.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <terrace/core/math/tensor.h>
#include <terrace/parallel/comm/communicator.h>

namespace terrace::running {

class WeightAverage {
 public:
  WeightAverage(Communicator& ranks, Device& host, comm::SumOrder order);
  void read(const TensorView& weights);   // called by visit, in ascending order
  void write(const TensorView& weights);  // called by fill, in the same order

 private:
  template <class Wide>
  void divide();
  void average();

  Communicator& ranks_;
  const comm::SumOrder order_;
  const std::unique_ptr<Stream> stream_;
  std::vector<std::byte> numbers_;
  DType dtype_ = DType::fp32;
  std::size_t written_ = 0;  // bytes
  bool averaged_ = false;
};

}  // namespace terrace::running
