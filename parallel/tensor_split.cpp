#include <terrace/parallel/tensor_split.h>

#include <algorithm>
#include <numeric>

#include <terrace/parallel/comm/call.h>

namespace terrace {
namespace {

std::int64_t longest_block(std::int64_t length, std::uint32_t ways) {
  return block_of(length, 0, static_cast<int>(ways)).count;
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

// Of one place of the dimension.
std::int64_t elements_behind(const Shape& shape, std::uint32_t dim) {
  std::int64_t inner = 1;
  for (std::size_t d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  return inner;
}

}  // namespace

Shape part_shape(const Shape& whole, const TensorSplit& split) {
  if (split.parts.empty()) return whole;
  std::int64_t length = 0;
  for (const auto part : split.parts) length += longest_block(part, split.ways);
  return with_length(whole, split.dim, length);
}

Shape whole_shape(const Shape& part, const TensorSplit& split) {
  if (split.parts.empty()) return part;
  return with_length(part, split.dim, std::accumulate(split.parts.begin(), split.parts.end(), std::int64_t{0}));
}

std::uint32_t rank_of(std::uint64_t element, const Shape& shape, const TensorSplit& split, std::uint32_t ranks) {
  if (split.parts.empty()) return 0;
  const auto whole_length = whole_shape(shape, split)[split.dim];
  auto place = static_cast<std::int64_t>(element) / elements_behind(shape, split.dim) % whole_length;
  auto part = split.parts.begin();
  while (place >= *part) place -= *part++;
  const auto ways = static_cast<int>(split.ways);
  int block = 0;
  while (place >= block_of(*part, block, ways).begin + block_of(*part, block, ways).count) ++block;
  return static_cast<std::uint32_t>(block) * (ranks / split.ways);
}

void each_run(const Shape& shape, const TensorSplit& split, const TensorParallel& tensor, std::uint64_t first,
              std::uint64_t count, const std::function<void(const SplitRun&)>& use) {
  if (split.parts.empty()) return use({first, first, count});
  const auto inner = elements_behind(shape, split.dim);
  const auto block = static_cast<int>(tensor.rank / holders(split, tensor)), ways = static_cast<int>(split.ways);
  const auto whole_length = whole_shape(shape, split)[split.dim];
  const auto row = shape[split.dim] * inner;  // elements of the dimension and all behind it
  const auto end = static_cast<std::int64_t>(first + count);
  for (auto outer = static_cast<std::int64_t>(first) / row; outer * row < end; ++outer) {
    std::int64_t place = 0, whole_place = 0;  // where a part begins
    for (const auto part : split.parts) {
      const auto mine = block_of(part, block, ways);
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

}  // namespace terrace
