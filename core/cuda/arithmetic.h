// Per-element arithmetic that compiles for host and device: conversions of the compute dtypes and the functions kernels need.
//
// Threads: any.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <terrace/core/cuda/lane.h>
#include <terrace/core/dtype.h>

namespace terrace::cuda {

// The type that sums and statistics are kept in.
template <class T>
struct accumulator {
  using type = float;
};
template <>
struct accumulator<double> {
  using type = double;
};
template <class T>
using Acc = typename accumulator<T>::type;

TERRACE_HD float widen(bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
TERRACE_HD float widen(float x) { return x; }
TERRACE_HD double widen(double x) { return x; }

// Rounds to nearest, ties to even; a NaN stays a quiet NaN. The same bits as bf16(float).
TERRACE_HD std::uint16_t bf16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}
// Acc<T> to T: narrow<bf16>(1.5F).
template <class T>
TERRACE_HD T narrow(Acc<T> x) {
  return x;
}
template <>
TERRACE_HD bf16 narrow<bf16>(float x) {
  bf16 y;
  y.bits = bf16_bits(x);
  return y;
}

TERRACE_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace terrace::cuda
