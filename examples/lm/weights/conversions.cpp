#include <terrace/examples/lm/weights/conversions.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace terrace::lm {
namespace {

// Goes through fp32 rounded to odd, so that the second rounding sees whether the first one lost bits.
bf16 narrowed(double value) {
  auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || std::isnan(value)) return bf16(nearest);
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;  // towards zero
  return bf16(std::bit_cast<float>(bits | 1U));
}

template <class To, class From>
To converted(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, fp16> || std::is_same_v<From, bf16>)
    return converted<To>(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, double>)
    return narrowed(x);
  else
    return static_cast<To>(x);
}

}  // namespace

template <class To, class From>
void convert(std::span<To> to, const std::byte* from) {
  auto* const out = to.data();
  for (std::size_t i = 0; i < to.size(); ++i) {
    From x;
    std::memcpy(&x, from + i * sizeof x, sizeof x);
    out[i] = converted<To>(x);
  }
}

template void convert<float, float>(std::span<float>, const std::byte*);
template void convert<float, double>(std::span<float>, const std::byte*);
template void convert<float, bf16>(std::span<float>, const std::byte*);
template void convert<float, fp16>(std::span<float>, const std::byte*);
template void convert<double, float>(std::span<double>, const std::byte*);
template void convert<double, double>(std::span<double>, const std::byte*);
template void convert<double, bf16>(std::span<double>, const std::byte*);
template void convert<double, fp16>(std::span<double>, const std::byte*);
template void convert<bf16, float>(std::span<bf16>, const std::byte*);
template void convert<bf16, double>(std::span<bf16>, const std::byte*);
template void convert<bf16, bf16>(std::span<bf16>, const std::byte*);
template void convert<bf16, fp16>(std::span<bf16>, const std::byte*);

}  // namespace terrace::lm
