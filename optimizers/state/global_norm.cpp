#include <terrace/optimizers/state/global_norm.h>

#include <algorithm>
#include <cmath>

#include <terrace/core/base/units.h>
#include <terrace/core/math/math.h>

namespace terrace::rules {

double GlobalNorm::of(Stream& stream, std::span<const TensorView> gradients) {
  const auto blocks_of = [](const TensorView& g) { return square_blocks(g.elements(), kSumBlock); };
  std::int64_t blocks = 0;
  for (const auto& g : gradients) blocks += blocks_of(g);
  if (blocks == 0) return 0;
  const auto bytes = round_up(static_cast<std::uint64_t>(blocks) * sizeof(double), kPageBytes);
  const bool is_apart = !device_.computes_on_host();
  if (sums_.bytes() < bytes) {
    sums_ = device_.host_memory()->allocate(bytes);
    if (is_apart) apart_ = device_.memory().allocate(bytes);
  }
  auto* at = (is_apart ? apart_ : sums_).data();
  for (const auto& g : gradients) {
    device_.math().sum_of_squares(stream, {at, DType::fp64, {blocks_of(g)}}, {g.data, g.dtype, {g.elements()}});
    at += static_cast<std::uint64_t>(blocks_of(g)) * sizeof(double);
  }
  if (is_apart) stream.copy(sums_.data(), apart_.data(), static_cast<std::uint64_t>(blocks) * sizeof(double));
  stream.synchronize();

  const auto* sum = reinterpret_cast<const double*>(sums_.data());
  double all = 0;
  for (const auto& g : gradients) {
    double tensor = 0;
    for (const auto* const end = sum + blocks_of(g); sum != end; ++sum) tensor += *sum;
    all += tensor;
  }
  return std::sqrt(all);
}

}  // namespace terrace::rules
