#include <terrace/parallel/map/gradient_squares.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <terrace/core/base/units.h>

namespace terrace::mapping {
namespace {

constexpr std::uint64_t kBlock = kSumBlock;

// The number of blocks for `count` elements at this place of the run.
std::uint64_t blocks_at(std::uint64_t place, std::uint64_t count) { return (place + count - 1) / kBlock - place / kBlock + 1; }
std::uint64_t blocks_at(const memory::Layout& layout, const memory::TensorPlace& at) {
  return blocks_at(layout.place_in_run(at), at.elements);
}

}  // namespace

GradientSquares::GradientSquares(const memory::Layout& layout, std::shared_ptr<MemoryResource> host, MemoryResource* apart)
    : layout_(layout), resource_(std::move(host)) {
  for (std::uint32_t l = 0; l < layout.layers(); ++l) {
    auto& layer = begins_.emplace_back();
    for (std::uint32_t t = 0; t < layout.tensors_of(l); ++t) {
      layer.push_back(count_);
      count_ += blocks_at(layout, layout.place(l, t));
    }
  }
  const auto bytes = round_up(std::max<std::uint64_t>(count_, 1) * sizeof(double), kPageBytes);
  memory_ = resource_->allocate(bytes);
  if (apart) apart_ = apart->allocate(bytes);
  std::ranges::fill(all(), 0.0);
}

void GradientSquares::clear(Math& math, Stream& compute) const {
  if (!apart_.data()) {
    std::ranges::fill(all(), 0.0);
    return;
  }
  math.zero(compute, {apart_.data(), DType::fp64, {static_cast<std::int64_t>(count_)}});
}

void GradientSquares::fetch(Stream& stream) const {
  if (apart_.data() && count_ != 0) stream.copy(memory_.data(), apart_.data(), count_ * sizeof(double));
}

std::uint64_t GradientSquares::blocks_of(const memory::Layout& layout) {
  std::uint64_t count = 0;
  for (std::uint32_t l = 0; l < layout.layers(); ++l)
    for (std::uint32_t t = 0; t < layout.tensors_of(l); ++t) count += blocks_at(layout, layout.place(l, t));
  return count;
}

GradientSquares::Blocks GradientSquares::of(std::uint32_t layer, std::uint32_t tensor, std::uint64_t first,
                                            std::uint64_t count) const {
  const auto begin = layout_.place_in_run(layout_.place(layer, tensor)), place = begin + first;
  if (first != 0 && place % kBlock != 0) throw std::logic_error("GradientSquares: a range begins inside a block");
  auto* const sums =
      (apart_.data() ? apart_ : memory_).data() + (begins_[layer][tensor] + (place / kBlock - begin / kBlock)) * sizeof(double);
  return {{sums, DType::fp64, {static_cast<std::int64_t>(blocks_at(place, count))}},
          static_cast<std::int64_t>(kBlock - place % kBlock)};
}

std::span<double> GradientSquares::all() const { return {reinterpret_cast<double*>(memory_.data()), count_}; }

double GradientSquares::norm(const Counts& counts) const {
  double sum = 0;
  for (std::uint32_t l = 0; l < layout_.layers(); ++l)
    for (std::uint32_t t = 0; t < layout_.tensors_of(l); ++t) {
      if (!counts(l, t)) continue;
      double tensor = 0;
      for (const double s : all().subspan(begins_[l][t], blocks_at(layout_, layout_.place(l, t)))) tensor += s;
      sum += tensor;
    }
  return std::sqrt(sum);
}

}  // namespace terrace::mapping
