// Element types, and bfloat16 and IEEE half precision as value types with round-to-nearest-even conversion.
//
// Threads: any.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <terrace/core/math/fp16_bits.h>

namespace terrace {

// e4m3, e5m2: the operands of products with operands of 8 bits (float8.h); nothing is stored or computed in them otherwise.
enum class DType : std::uint8_t { fp32, bf16, fp64, fp16, i32, e4m3, e5m2 };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::fp32: return 4;
    case DType::bf16: return 2;
    case DType::fp64: return 8;
    case DType::fp16: return 2;
    case DType::i32: return 4;
    case DType::e4m3:
    case DType::e5m2: return 1;
  }
  return 0;
}
constexpr bool is_float8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }
// The dtype of sums, statistics and inner products for a compute dtype.
constexpr DType accumulator_of(DType dtype) { return dtype == DType::fp64 ? DType::fp64 : DType::fp32; }
std::string_view name_of(DType dtype);     // "fp32"
DType parse_dtype(std::string_view text);  // throws Error(ErrorKind::refused)

struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  // Round to nearest, ties to even; a NaN stays a (quiet) NaN.
  explicit bf16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffU) > 0x7f800000U;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40U : (u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};
static_assert(sizeof(bf16) == 2);

struct fp16 {
  std::uint16_t bits = 0;

  fp16() = default;
  // As for bf16; values of 65,520 and more become infinite.
  explicit fp16(float value) : bits(static_cast<std::uint16_t>(fp16_bits::rounded<std::uint32_t>(value))) {}
  explicit operator float() const { return fp16_bits::widened<float>(std::uint32_t{bits}); }
};
static_assert(sizeof(fp16) == 2);

template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::fp32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::fp64;
};
template <>
struct dtype_of<bf16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<fp16> {
  static constexpr DType value = DType::fp16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};

}  // namespace terrace
