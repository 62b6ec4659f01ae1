// Per-element arithmetic that compiles for host and device: conversions of the compute dtypes and the functions kernels need.
//
// Threads: any.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include <terrace/core/cuda/lane.h>
#include <terrace/core/math/dtype.h>

namespace terrace::cuda {

// The type in which sums and statistics are kept.
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
TERRACE_HD float widen(fp16 x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  return fp16_bits::widened<float>(std::uint32_t{x.bits});
#endif
}
TERRACE_HD float widen(float x) { return x; }
TERRACE_HD double widen(double x) { return x; }

// Rounds to nearest, ties to even; a NaN stays a quiet NaN. The same bits as bf16(float).
TERRACE_HD std::uint16_t bf16_bits(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}
// Converts two numbers, the first to the lower half: one instruction on a GPU. The payload of a NaN is not specified.
TERRACE_HD std::uint32_t bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return static_cast<std::uint32_t>(bf16_bits(high)) << 16 | bf16_bits(low);
#endif
}
// The same for fp16. The payload of a NaN is not specified.
TERRACE_HD std::uint32_t fp16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return fp16_bits::rounded<std::uint32_t>(high) << 16 | fp16_bits::rounded<std::uint32_t>(low);
#endif
}
// Converts Acc<T> to T: narrow<bf16>(1.5F).
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
template <>
TERRACE_HD fp16 narrow<fp16>(float x) {
  fp16 y;
  y.bits = static_cast<std::uint16_t>(fp16_pair(x, 0.0F) & 0xffffU);
  return y;
}

// 2^x, for softmax. On a GPU: one instruction (error up to 2 units in the last place; subnormal results are zero); on the host:
// the C library's function.
TERRACE_HD float exp2_of(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}
TERRACE_HD float exp_of(float x) { return std::exp(x); }
TERRACE_HD double exp_of(double x) { return std::exp(x); }
TERRACE_HD float log_of(float x) { return std::log(x); }
TERRACE_HD double log_of(double x) { return std::log(x); }

TERRACE_HD constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace terrace::cuda
