#include <terrace/parallel/model/tensor_split.h>

#include <algorithm>
#include <array>
#include <numeric>

#include <terrace/parallel/comm/call.h>

namespace terrace::model {
namespace {

std::int64_t longest_block(std::int64_t length, std::uint32_t ways) {
  return comm::block_of(length, 0, static_cast<int>(ways)).count;
}

Shape with_length(const Shape& shape, std::uint32_t dim, std::int64_t length) {
  const auto at = [&](std::uint32_t d) { return d == dim ? length : shape[d]; };
  switch (shape.rank()) {
    case 1: return {at(0)};
    case 2: return {at(0), at(1)};
    case 3: return {at(0), at(1), at(2)};
    default: return {at(0), at(1), at(2), at(3)};
  }
}

// The elements of one place of the dimension.
std::int64_t elements_behind(const Shape& shape, std::uint32_t dim) {
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  return inner;
}

std::uint32_t stride_of(const TensorSplit& split, std::uint32_t ranks) {
  return split.stride != 0 ? split.stride : ranks / split.ways;
}

// The number of this rank's block in the split dimension, and in the other dimension.
std::uint32_t block_number(const TensorSplit& split, const TensorParallel& tensor) {
  return tensor.rank / stride_of(split, tensor.ranks) % split.ways;
}
std::uint32_t across_number(const TensorSplit& split, const TensorParallel& tensor) {
  const auto& a = split.across;
  return tensor.rank / a.stride % a.ways * a.within + tensor.rank / a.within_stride % a.within;
}

// Places of one dimension that are adjacent in the part and in the whole.
struct Places {
  std::int64_t in_part = 0, in_whole = 0, count = 0;
};
std::vector<Places> places_of(const std::vector<std::int64_t>& parts, std::uint32_t block, std::uint32_t ways) {
  std::vector<Places> all;
  std::int64_t in_part = 0, in_whole = 0;  // where a part begins
  for (const auto part : parts) {
    const auto mine = comm::block_of(part, static_cast<int>(block), static_cast<int>(ways));
    all.push_back({in_part, in_whole + mine.begin, mine.count});
    in_part += longest_block(part, ways);
    in_whole += part;
  }
  return all;
}

// For a matrix with both dimensions cut: goes row by row.
void each_run_of_block(const Shape& shape, const TensorSplit& split, const TensorParallel& tensor, std::int64_t first,
                       std::int64_t end, const std::function<void(const SplitRun&)>& use) {
  const auto whole = whole_shape(shape, split);
  std::array<std::vector<Places>, 2> places;
  places[split.dim] = places_of(split.parts, block_number(split, tensor), split.ways);
  places[1 - split.dim] = places_of({whole[1 - split.dim]}, across_number(split, tensor), split.across.blocks());
  for (const auto& rows : places[0])
    for (std::int64_t r = std::max<std::int64_t>(0, first / shape[1] - rows.in_part); r < rows.count; ++r) {
      const auto row = (rows.in_part + r) * shape[1], whole_row = (rows.in_whole + r) * whole[1];
      if (row >= end) break;
      for (const auto& columns : places[1]) {
        const auto from = std::max(row + columns.in_part, first), to = std::min(row + columns.in_part + columns.count, end);
        const auto moved = whole_row + columns.in_whole - (row + columns.in_part);
        if (from < to)
          use({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(from + moved),
               static_cast<std::uint64_t>(to - from)});
      }
    }
}

}  // namespace

std::uint32_t part_number(const TensorSplit& split, const TensorParallel& tensor) {
  return block_number(split, tensor) * split.across.blocks() + across_number(split, tensor);
}

bool acts_for(const TensorSplit& split, const TensorParallel& tensor) {
  auto earlier = tensor;
  for (earlier.rank = 0; earlier.rank < tensor.rank; ++earlier.rank)
    if (part_number(split, earlier) == part_number(split, tensor)) return false;
  return true;
}

Shape part_shape(const Shape& whole, const TensorSplit& split) {
  if (split.parts.empty()) return whole;
  std::int64_t length = 0;
  for (const auto part : split.parts) length += longest_block(part, split.ways);
  const auto shape = with_length(whole, split.dim, length);
  return split.across.blocks() == 1 ? shape : with_length(shape, 1 - split.dim, whole[1 - split.dim] / split.across.blocks());
}

Shape whole_shape(const Shape& part, const TensorSplit& split) {
  if (split.parts.empty()) return part;
  const auto shape = with_length(part, split.dim, std::accumulate(split.parts.begin(), split.parts.end(), std::int64_t{0}));
  return split.across.blocks() == 1 ? shape : with_length(shape, 1 - split.dim, part[1 - split.dim] * split.across.blocks());
}

std::uint32_t rank_of(std::uint64_t element, const Shape& shape, const TensorSplit& split, std::uint32_t ranks) {
  if (split.parts.empty()) return 0;
  const auto whole = whole_shape(shape, split);
  // The block that contains a place of the dimension.
  const auto block_at = [](std::int64_t place, const std::vector<std::int64_t>& parts, std::uint32_t blocks) {
    auto part = parts.begin();
    while (place >= *part) place -= *part++;
    std::uint32_t block = 0;
    const auto end_of = [&](std::uint32_t b) {
      const auto its = comm::block_of(*part, static_cast<int>(b), static_cast<int>(blocks));
      return its.begin + its.count;
    };
    while (place >= end_of(block)) ++block;
    return block;
  };
  const auto place = [&](std::uint32_t dim) {
    return static_cast<std::int64_t>(element) / elements_behind(whole, dim) % whole[dim];
  };
  const auto rank = block_at(place(split.dim), split.parts, split.ways) * stride_of(split, ranks);
  const auto& across = split.across;
  if (across.blocks() == 1) return rank;
  const auto other = block_at(place(1 - split.dim), {whole[1 - split.dim]}, across.blocks());
  return rank + other / across.within * across.stride + other % across.within * across.within_stride;
}

void each_run(const Shape& shape, const TensorSplit& split, const TensorParallel& tensor, std::uint64_t first,
              std::uint64_t count, const std::function<void(const SplitRun&)>& use) {
  if (split.parts.empty()) return use({first, first, count});
  if (split.across.blocks() > 1) {
    each_run_of_block(shape, split, tensor, static_cast<std::int64_t>(first), static_cast<std::int64_t>(first + count), use);
    return;
  }
  const auto inner = elements_behind(shape, split.dim);
  const auto block = static_cast<int>(block_number(split, tensor)), ways = static_cast<int>(split.ways);
  const auto whole_length = whole_shape(shape, split)[split.dim];
  const auto row = shape[split.dim] * inner;  // elements of the dimension and of all after it
  const auto end = static_cast<std::int64_t>(first + count);
  for (auto outer = static_cast<std::int64_t>(first) / row; outer * row < end; ++outer) {
    std::int64_t place = 0, whole_place = 0;  // where a part begins
    for (const auto part : split.parts) {
      const auto mine = comm::block_of(part, block, ways);
      const auto from = std::max(outer * row + place * inner, static_cast<std::int64_t>(first));
      const auto to = std::min(outer * row + (place + mine.count) * inner, end);
      const auto moved = (outer * whole_length + whole_place + mine.begin) * inner - (outer * row + place * inner);
      if (from < to)
        use({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(from + moved),
             static_cast<std::uint64_t>(to - from)});
      place += longest_block(part, split.ways);
      whole_place += part;
    }
  }
}

}  // namespace terrace::model
