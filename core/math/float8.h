// Numbers of 8 bits with an exponent, e4m3 and e5m2, by the "OCP 8-bit Floating Point Specification (OFP8)", revision 1.0, and
// the scale with which a matrix is rounded to them.
//
//            exponent  mantissa  bias  greatest              least above 0   not finite
//   e4m3     4 bits    3 bits    7     448 = 1.75 · 2⁸       2⁻⁹             NaN (one code a sign), no infinity
//   e5m2     5 bits    2 bits    15    57,344 = 1.75 · 2¹⁵   2⁻¹⁶            infinity, NaN
//
// Numbers are rounded to nearest, ties to even, and saturate: beyond the greatest, infinities included, lies the greatest. A
// NaN stays one.
//
//   code = float8_code(x · factor),  x ≈ float8_value(code) · scale,  with factor = 1 ÷ scale = 2ⁿ
//
// n is the greatest integer with m · 2ⁿ at most the format's greatest number, where m is the matrix's greatest magnitude. So
// nothing saturates, and multiplying by a scale is exact: an element is rounded by its own leading bits, and the scale only
// decides which elements are so small that they lose some. m is a maximum, which has no order: the scale depends on neither
// threads nor the order of the elements. n is at most 63, so that a product of two scales is a normal fp32 number. If an
// element is not finite, or n would be below −63, the scale is NaN, and so are all results of a product with this matrix.
//
// Threads: any.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include <terrace/core/math/dtype.h>

namespace terrace::math {

struct Float8Format {
  int mantissa_bits, bias, greatest_exponent;
  std::uint8_t greatest;  // its code
  bool has_infinity;      // the code after the greatest
};
constexpr Float8Format float8_format(DType dtype) {
  return dtype == DType::e4m3
             ? Float8Format{.mantissa_bits = 3, .bias = 7, .greatest_exponent = 8, .greatest = 0x7e, .has_infinity = false}
             : Float8Format{.mantissa_bits = 2, .bias = 15, .greatest_exponent = 15, .greatest = 0x7b, .has_infinity = true};
}

// The code of a number of this format.
constexpr std::uint8_t float8_code(float x, Float8Format f) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return sign | 0x7fU;
  if (magnitude < static_cast<std::uint32_t>(128 - f.bias) << 23) {  // subnormal: a multiple of the least number
    const auto per_least = std::bit_cast<float>(static_cast<std::uint32_t>(126 + f.bias + f.mantissa_bits) << 23);
    constexpr float kToNearest = 0x1p23F;  // adding it rounds to an integer, ties to even
    const float sum = std::bit_cast<float>(magnitude) * per_least + kToNearest;
    return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(sum) & 0xffU);
  }
  const int shift = 23 - f.mantissa_bits;
  const std::uint32_t rounded = (magnitude + (1U << (shift - 1)) - 1 + (magnitude >> shift & 1U)) >> shift;
  const std::uint32_t code = rounded - (static_cast<std::uint32_t>(127 - f.bias) << f.mantissa_bits);
  return sign | static_cast<std::uint8_t>(code < f.greatest ? code : f.greatest);
}

// The number that a code stands for, exactly.
constexpr float float8_value(std::uint8_t code, Float8Format f) {
  const std::uint32_t sign = (code & 0x80U) << 24, magnitude = code & 0x7fU;
  if (magnitude > f.greatest)
    return std::bit_cast<float>(sign | (f.has_infinity && magnitude == f.greatest + 1U ? 0x7f800000U : 0x7fc00000U));
  if (magnitude < 1U << f.mantissa_bits) {
    const auto least = std::bit_cast<float>(static_cast<std::uint32_t>(128 - f.bias - f.mantissa_bits) << 23);
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * least));
  }
  return std::bit_cast<float>(sign |
                              ((magnitude << (23 - f.mantissa_bits)) + (static_cast<std::uint32_t>(127 - f.bias) << 23)));
}

struct Float8Scale {
  float scale = 1, factor = 1;
};
// The scale of a matrix, from the bits of its greatest magnitude. If the scale is NaN, all codes are zero.
constexpr Float8Scale float8_scale(std::uint32_t greatest_magnitude_bits, Float8Format f) {
  constexpr std::uint32_t kMantissa = 0x7fffff, kThreeQuarters = 0x600000;  // 1.75
  constexpr int kMost = 63;
  const int exponent = static_cast<int>(greatest_magnitude_bits >> 23) - 127;
  const int n = f.greatest_exponent - exponent - ((greatest_magnitude_bits & kMantissa) > kThreeQuarters ? 1 : 0);
  if (greatest_magnitude_bits >= 0x7f800000U || n < -kMost)
    return {.scale = std::numeric_limits<float>::quiet_NaN(), .factor = 0};
  const int most = n < kMost ? n : kMost;
  return {.scale = std::bit_cast<float>(static_cast<std::uint32_t>(127 - most) << 23),
          .factor = std::bit_cast<float>(static_cast<std::uint32_t>(127 + most) << 23)};
}

constexpr std::uint8_t float8_code(float x, const Float8Scale& s, Float8Format f) {
  return s.factor == 0 ? std::uint8_t{0} : float8_code(x * s.factor, f);
}

// The columns of codes for so many elements. Products read rows in words of 16 bytes; with whole 128, numbers of tokens that
// change from step to step (experts) need few algorithms.
constexpr std::int64_t float8_columns(std::int64_t elements) { return (elements + 127) / 128 * 128; }

}  // namespace terrace::math
