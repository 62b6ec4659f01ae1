// IEEE half precision as bits, of one number or of a vector of numbers (the compiler's vector types). The value type, the CPU's
// loops and the GPU's kernels share this source and therefore give the same bits.
//
// Bits has 32 bits per number; the fp16 is in the lower half. Number is fp32, with as many elements as Bits. All functions are
// inlined, so that code for one instruction set can never be linked into the path of another.
//
// Threads: any.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TERRACE_FP16_INLINE __host__ __device__ __forceinline__
#else
#define TERRACE_FP16_INLINE inline __attribute__((always_inline))
#endif

namespace terrace::fp16_bits {

template <class To, class From>
TERRACE_FP16_INLINE To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// To nearest, ties to even; 65,520 and above become infinite; a NaN stays a quiet NaN with the upper bits of its payload.
template <class Bits, class Number>
TERRACE_FP16_INLINE Bits rounded(Number x) {
  const Bits bits = same_bits<Bits>(x);
  const Bits magnitude = bits & 0x7fffffffU;
  // A subnormal result is a multiple of 2^-24, which is the last place of numbers in [0.5, 1): adding 0.5 rounds to it.
  const Bits subnormal = same_bits<Bits>(same_bits<Number>(magnitude) + 0.5F) - 0x3f000000U;
  const Bits normal = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const Bits infinite = (magnitude & 0U) + 0x7c00U;
  const Bits nan = ((magnitude >> 13) & 0x3ffU) | 0x7e00U;
  const Bits within = magnitude < 0x38800000U ? subnormal : normal;
  const Bits beyond = magnitude > 0x7f800000U ? nan : infinite;
  return ((bits >> 16) & 0x8000U) | (magnitude >= 0x47800000U ? beyond : within);
}

// Exact; subnormal fp16 numbers become normal fp32 numbers.
template <class Number, class Bits>
TERRACE_FP16_INLINE Number widened(Bits half) {
  const Bits magnitude = (half & 0x7fffU) << 13;
  const Bits normal = magnitude + 0x38000000U, beyond = magnitude + 0x70000000U;
  // 2^-14 · (1 + fraction) − 2^-14
  const Bits smallest = (half & 0U) + 0x38800000U;
  const Bits subnormal = same_bits<Bits>(same_bits<Number>(magnitude + smallest) - same_bits<Number>(smallest));
  const Bits within = magnitude < 0x00800000U ? subnormal : normal;
  return same_bits<Number>(((half & 0x8000U) << 16) | (magnitude >= 0x0f800000U ? beyond : within));
}

}  // namespace terrace::fp16_bits
