// The part of a parameter that a tensor rank holds: one dimension is cut into blocks; in a grid of ranks, both dimensions of a
// matrix are. If a matrix has several parts in that dimension (such as q, k and v), each part is cut separately. If a length
// cannot be divided evenly, the first blocks are longer by one; on the other ranks, the place of the missing element holds
// zero.
//
// Threads: values; pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <terrace/core/math/tensor.h>
#include <terrace/parallel/mesh/tensor_parallel.h>

namespace terrace::model {

struct TensorSplit {
  std::uint32_t dim = 0;
  std::vector<std::int64_t> parts = {};  // lengths in the whole parameter; empty: it is not split
  std::uint32_t ways = 1;                // blocks of each part; it divides the tensor ranks
  std::uint32_t stride = 0;              // ranks from one block to the next; 0: holders of a block are neighbours
  // The other dimension of a matrix: `ways` blocks of equal length, each cut again into `within` blocks.
  struct Across {
    std::uint32_t ways = 1, stride = 1, within = 1, within_stride = 1;
    [[nodiscard]] std::uint32_t blocks() const { return ways * within; }
    friend bool operator==(const Across&, const Across&) = default;
  } across = {};
  friend bool operator==(const TensorSplit&, const TensorSplit&) = default;
};

// The shape of a rank's part of `whole`, the same on all ranks; and the inverse.
Shape part_shape(const Shape& whole, const TensorSplit& split);
Shape whole_shape(const Shape& part, const TensorSplit& split);
// How many ranks hold the same part. Only the first of them counts the part in a norm and saves it (acts_for()).
inline std::uint32_t holders(const TensorSplit& split, const TensorParallel& tensor) {
  return tensor.ranks / (split.ways * split.across.blocks());
}
// The number of the part that the rank holds.
std::uint32_t part_number(const TensorSplit& split, const TensorParallel& tensor);
bool acts_for(const TensorSplit& split, const TensorParallel& tensor);

// Elements that are adjacent in the part and in the whole, both row-major.
struct SplitRun {
  std::uint64_t in_part = 0, in_whole = 0, count = 0;
};
// The runs of the part's elements [first, first + count), ascending in both, without the places that hold no element.
void each_run(const Shape& part, const TensorSplit& split, const TensorParallel& tensor, std::uint64_t first,
              std::uint64_t count, const std::function<void(const SplitRun&)>& use);

// The first rank that holds this element of the whole parameter; it acts for the element.
std::uint32_t rank_of(std::uint64_t element, const Shape& part, const TensorSplit& split, std::uint32_t ranks);

}  // namespace terrace::model
