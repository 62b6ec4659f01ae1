// The formats in which a chunk keeps one number per element: the dtypes, and others.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <string_view>

#include <terrace/core/math/dtype.h>

namespace terrace::rules {

enum class Format : std::uint8_t {
  none,
  fp32,
  bf16,
  fp64,
  fp16,               // a compute weight with an fp32 master
  low16,              // the lower half of an fp32 weight whose upper half, rounded, is the bf16 weight
  low8,               // the 8 bits below the bf16 weight, of a weight that is fp32 rounded to 24 bits
  dynamic8,           // 8-bit codes in blocks of 256, each with an fp32 scale; both signs
  dynamic8_unsigned,  // the same without a sign
  packed,             // not one number per element: fp32 numbers in the optimizer's own layout
  packed64,           // the same in fp64
};
constexpr bool is_packed(Format f) { return f == Format::packed || f == Format::packed64; }
// A master weight that is complete only together with the bf16 weight.
constexpr bool is_low(Format f) { return f == Format::low16 || f == Format::low8; }
constexpr bool is_dynamic8(Format f) { return f == Format::dynamic8 || f == Format::dynamic8_unsigned; }

std::string_view name_of(Format format);  // "fp32": the name in the store's index
Format format_of(DType dtype);
DType dtype_of_format(Format format);                           // std::logic_error if it is not a dtype
std::uint64_t bytes_of(Format format, std::uint64_t elements);  // of an array

}  // namespace terrace::rules
