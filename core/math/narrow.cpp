#include <terrace/core/math/narrow.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <terrace/core/math/dtype.h>

namespace terrace::math {

// Tile by tile through the stack, so that a write never overwrites bytes that are still to be read.
void narrow_in_place(std::byte* numbers, std::int64_t count) {
  constexpr std::int64_t kTile = 1024;
  std::array<float, kTile> wide;
  std::array<bf16, kTile> narrow;
  for (std::int64_t at = 0; at < count; at += kTile) {
    const auto n = static_cast<std::size_t>(std::min(kTile, count - at));
    const auto first = static_cast<std::size_t>(at);
    std::memcpy(wide.data(), numbers + first * sizeof(float), n * sizeof(float));
    for (std::size_t i = 0; i < n; ++i) narrow[i] = bf16(wide[i]);
    std::memcpy(numbers + first * sizeof(bf16), narrow.data(), n * sizeof(bf16));
  }
}

}  // namespace terrace::math
