// The sums of squares for a gradient's norm. In each run of the layout, every tensor has one fp64 sum for each block of
// kSumBlock elements that it touches.
//
// Blocks lie at fixed places of the run, so a rank with a part of a gradient computes the same sums as a rank with all of it,
// and one fold in declared order gives the same norm for every division of the gradient between chunks or ranks.
//
// Owner:   a Compute. If the device has its own memory, kernels write the sums there, because single writes of 8 bytes are slow
//          over the link; fetch() copies all sums to the host at once.
// Threads: written on the compute stream; read on the host after fetch()'s stream has finished.
// Errors:  std::logic_error for a range that begins inside a block.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <terrace/core/device/memory_resource.h>
#include <terrace/core/math/math.h>
#include <terrace/memory/layout.h>

namespace terrace::mapping {

class GradientSquares {
 public:
  // `apart`: the device's own memory; null: kernels write to `host`.
  GradientSquares(const memory::Layout& layout, std::shared_ptr<MemoryResource> host, MemoryResource* apart = nullptr);
  [[nodiscard]] static std::uint64_t blocks_of(const memory::Layout& layout);  // of all tensors

  struct Blocks {
    TensorView sums;         // one for each block
    std::int64_t first = 0;  // elements in the first block
  };
  // The blocks of elements [first, first + count) of a tensor of the layout, for Math::sum_of_squares().
  [[nodiscard]] Blocks of(std::uint32_t layer, std::uint32_t tensor, std::uint64_t first, std::uint64_t count) const;
  void clear(Math& math, Stream& compute) const;
  void fetch(Stream& stream) const;

  [[nodiscard]] std::span<double> all() const;  // on the host
  // The norm of the tensors for which `counts` is true, folded in declared order, each tensor's blocks in ascending order.
  using Counts = std::function<bool(std::uint32_t layer, std::uint32_t tensor)>;
  [[nodiscard]] double norm(const Counts& counts) const;

 private:
  const memory::Layout& layout_;
  std::vector<std::vector<std::uint64_t>> begins_;  // [layer][tensor]: its first sum
  std::uint64_t count_ = 0;
  std::shared_ptr<MemoryResource> resource_;
  Slab memory_, apart_;
};

}  // namespace terrace::mapping
