// Several numbers side by side: the arithmetic type of a rule (rule.h) in the host's fp32 loops.
//
// These are the compiler's vectors: 4, 8 or 16 lanes compile everywhere, and become one instruction per operation if the loop
// is compiled for a set with that many lanes (each_isa.h). So all sets share one source.
//
// Internal to optimizers/. Threads: values.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include <terrace/optimizers/formats/each_isa.h>
#include <terrace/optimizers/loops/fused_lanes.h>

namespace terrace::rules {

template <int kLanes>
struct VectorsOf;
#define TERRACE_VECTORS_OF(lanes)                                         \
  template <>                                                             \
  struct VectorsOf<lanes> {                                               \
    typedef float Numbers __attribute__((vector_size(4 * lanes)));        \
    typedef std::uint32_t Bits __attribute__((vector_size(4 * lanes)));   \
    typedef std::uint16_t Shorts __attribute__((vector_size(4 * lanes))); \
    typedef std::uint8_t Bytes __attribute__((vector_size(2 * lanes)));   \
  }
TERRACE_VECTORS_OF(4);
TERRACE_VECTORS_OF(8);
TERRACE_VECTORS_OF(16);
#undef TERRACE_VECTORS_OF

enum class SimdHalf : bool { lower, upper };

template <int kLanes>
struct Simd {
  using Numbers = typename VectorsOf<kLanes>::Numbers;
  using Bits = typename VectorsOf<kLanes>::Bits;
  using Shorts = typename VectorsOf<kLanes>::Shorts;  // two per lane
  using Bytes = typename VectorsOf<kLanes>::Bytes;    // one for each of them
  static constexpr int kCount = kLanes;

  TERRACE_INLINE static Simd all(float value) { return {in_every_place<Numbers>(value, kPlaces)}; }
  TERRACE_INLINE static Bits all_bits(std::uint32_t value) { return in_every_place<Bits>(value, kPlaces); }
  TERRACE_INLINE static Simd of_bits(Bits bits) { return {reinterpret_cast<Numbers>(bits)}; }
  [[nodiscard]] TERRACE_INLINE Bits bits() const { return reinterpret_cast<Bits>(numbers); }

  // Moves the first kLanes, or the other kLanes, of 2 · kLanes halves in a row to the upper or the lower half of each place.
  template <SimdHalf kTo>
  TERRACE_INLINE static Bits widened_first(Bits halves) {
    return widened<kTo, 0>(halves, kHalves);
  }
  template <SimdHalf kTo>
  TERRACE_INLINE static Bits widened_second(Bits halves) {
    return widened<kTo, kLanes>(halves, kHalves);
  }
  // The upper or the lower halves of two vectors' places, as a row.
  template <SimdHalf kFrom>
  TERRACE_INLINE static Bits narrowed(Bits first, Bits second) {
    return narrowed<kFrom>(first, second, kHalves);
  }
  // The first kLanes halves of a row at even places, the others at odd ones.
  TERRACE_INLINE static Bits alternating(Bits halves) { return alternating(halves, kHalves); }

  friend TERRACE_INLINE Simd operator+(Simd a, Simd b) { return {a.numbers + b.numbers}; }
  friend TERRACE_INLINE Simd operator-(Simd a, Simd b) { return {a.numbers - b.numbers}; }
  friend TERRACE_INLINE Simd operator*(Simd a, Simd b) { return {a.numbers * b.numbers}; }
  friend TERRACE_INLINE Simd operator/(Simd a, Simd b) { return {a.numbers / b.numbers}; }
  friend TERRACE_INLINE Simd operator-(Simd a) { return {-a.numbers}; }
  friend TERRACE_INLINE auto operator>(Simd a, Simd b) { return a.numbers > b.numbers; }
  friend TERRACE_INLINE auto operator<(Simd a, Simd b) { return a.numbers < b.numbers; }

  Numbers numbers;

 private:
  static constexpr std::make_integer_sequence<int, kLanes> kPlaces{};
  template <class Vector, class One, int... kPlace>
  TERRACE_INLINE static Vector in_every_place(One value, std::integer_sequence<int, kPlace...>) {
    return Vector{(static_cast<void>(kPlace), value)...};
  }
  static constexpr std::make_integer_sequence<int, 2 * kLanes> kHalves{};
  template <SimdHalf kTo, int kFirst, int... kPlace>
  TERRACE_INLINE static Bits widened(Bits halves, std::integer_sequence<int, kPlace...>) {
    constexpr int kZeros = 2 * kLanes, kUp = kTo == SimdHalf::upper;
    return reinterpret_cast<Bits>(__builtin_shufflevector(reinterpret_cast<Shorts>(halves), Shorts{},
                                                          (kPlace % 2 == kUp ? kFirst + kPlace / 2 : kZeros + kPlace)...));
  }
  template <SimdHalf kFrom, int... kPlace>
  TERRACE_INLINE static Bits narrowed(Bits first, Bits second, std::integer_sequence<int, kPlace...>) {
    return reinterpret_cast<Bits>(__builtin_shufflevector(reinterpret_cast<Shorts>(first), reinterpret_cast<Shorts>(second),
                                                          (2 * kPlace + (kFrom == SimdHalf::upper))...));
  }
  template <int... kPlace>
  TERRACE_INLINE static Bits alternating(Bits halves, std::integer_sequence<int, kPlace...>) {
    const auto shorts = reinterpret_cast<Shorts>(halves);
    return reinterpret_cast<Bits>(__builtin_shufflevector(shorts, shorts, (kPlace / 2 + kPlace % 2 * kLanes)...));
  }
};

// As for one number in numbers.h.
template <int kLanes>
TERRACE_INLINE Simd<kLanes> root(Simd<kLanes> x) {
  Simd<kLanes> roots;
  for (int i = 0; i < kLanes; ++i) roots.numbers[i] = std::sqrt(x.numbers[i]);  // becomes one instruction
  return roots;
}
template <int kLanes>
TERRACE_INLINE Simd<kLanes> fused(Simd<kLanes> a, Simd<kLanes> b, Simd<kLanes> c) {
#if !defined(__FP_FAST_FMAF)  // in the baseline, where std::fma calls the C library for each lane
  if constexpr (kLanes == lanes_of(Isa::baseline)) return {fused_in_fp64(a.numbers, b.numbers, c.numbers)};
#endif
#if defined(__x86_64__) && (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
  // With sanitizers, a loop over lanes would take twice as long to compile. Without them the loop is better, because the
  // compiler schedules the instruction itself.
  asm("vfmadd213ps %2, %1, %0" : "+v"(a.numbers) : "v"(b.numbers), "v"(c.numbers));
  return a;
#else
  Simd<kLanes> sums;
  for (int i = 0; i < kLanes; ++i) sums.numbers[i] = std::fma(a.numbers[i], b.numbers[i], c.numbers[i]);
  return sums;
#endif
}
template <class Mask, int kLanes>
TERRACE_INLINE Simd<kLanes> choose(Mask condition, Simd<kLanes> yes, Simd<kLanes> no) {
  return {condition ? yes.numbers : no.numbers};
}

}  // namespace terrace::rules
