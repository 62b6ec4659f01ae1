// The norm of all gradients together, with the engine's sums: fp64 partial sums of 4,096 elements of one tensor, folded tensor
// by tensor in declared order. (In an engine, blocks lie at fixed places of a layer, so there the sums are the same for tensors
// that begin at such a place.)
//
// Owner:   an OptimizerState; borrows the device. Threads: one at a time. Errors: those of the stream.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/math/tensor.h>

namespace terrace::rules {

class GlobalNorm {
 public:
  explicit GlobalNorm(Device& device) : device_(device) {}
  // Waits for the stream.
  double of(Stream& stream, std::span<const TensorView> gradients);

 private:
  Device& device_;
  Slab sums_, apart_;  // on the host; in the device's own memory, if it has some
};

}  // namespace terrace::rules
