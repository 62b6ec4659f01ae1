#include <terrace/core/math/block8.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace terrace::math {
namespace {

constexpr std::size_t kElements = kBlock8Elements;
using Wide = std::array<float, kElements>;

struct Packed {
  float scale;
  std::array<std::int8_t, kElements> codes;
};
static_assert(sizeof(Packed) == kBlock8Bytes);

Packed pack(const Wide& x) {
  constexpr std::uint32_t kMagnitude = 0x7fffffff;
  std::uint32_t most = 0;
  for (const float v : x) most = std::max(most, std::bit_cast<std::uint32_t>(v) & kMagnitude);
  const auto [scale, factor] = block8_scale(most);
  Packed packed{scale, {}};
  if (factor == 0) return packed;
  for (std::size_t i = 0; i < kElements; ++i) packed.codes[i] = block8_code(x[i], factor);
  return packed;
}

Wide unpack(const Packed& packed) {
  Wide x;
  for (std::size_t i = 0; i < kElements; ++i) x[i] = block8_value(packed.codes[i], packed.scale);
  return x;
}

void demand(DType dtype) {
  if (dtype != DType::fp32 && dtype != DType::bf16) throw std::logic_error("block8: only fp32 and bf16 are supported");
}

}  // namespace

// Block by block through the stack, so that a write never overwrites bytes that are still to be read.
void pack_block8(std::byte* to, DType dtype, const std::byte* from, std::int64_t blocks) {
  demand(dtype);
  for (std::int64_t b = 0; b < blocks; ++b, from += kElements * size_of(dtype), to += kBlock8Bytes) {
    Wide wide;
    if (dtype == DType::fp32) {
      std::memcpy(wide.data(), from, sizeof wide);
    } else {
      std::array<bf16, kElements> narrow;
      std::memcpy(static_cast<void*>(narrow.data()), from, sizeof narrow);
      for (std::size_t i = 0; i < kElements; ++i) wide[i] = static_cast<float>(narrow[i]);
    }
    const auto packed = pack(wide);
    std::memcpy(to, &packed, sizeof packed);
  }
}

void unpack_block8(DType dtype, std::byte* to, const std::byte* from, std::int64_t blocks) {
  demand(dtype);
  for (std::int64_t b = 0; b < blocks; ++b, from += kBlock8Bytes, to += kElements * size_of(dtype)) {
    Packed packed;
    std::memcpy(&packed, from, sizeof packed);
    const auto wide = unpack(packed);
    if (dtype == DType::fp32) {
      std::memcpy(to, wide.data(), sizeof wide);
    } else {
      std::array<bf16, kElements> narrow;
      for (std::size_t i = 0; i < kElements; ++i) narrow[i] = bf16(wide[i]);
      std::memcpy(to, narrow.data(), sizeof narrow);
    }
  }
}

}  // namespace terrace::math
