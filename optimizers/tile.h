// Elements of a chunk side by side: what a loop works on at once.
//
// Internal to optimizers/. Threads: values; the bytes are the chunk's or a buffer's.
#pragma once

#include <cstdint>
#include <type_traits>

#include <terrace/optimizers/bf16_bits.h>
#include <terrace/optimizers/random_half.h>

namespace terrace::elementwise {

// In the arithmetic's type, or as bf16 or 8-bit codes that the loop itself converts. None of them: the rule has no such row.
template <class A>
struct Row {
  A* numbers = nullptr;
  std::uint16_t* halves = nullptr;
  std::uint8_t* codes = nullptr;  // whole blocks (dynamic8.h), for loops that take them; with their scales
  float* scales = nullptr;

  // Of numbers and halves; loops that take codes take whole tiles.
  [[nodiscard]] Row from(std::int64_t i) const {
    return {.numbers = numbers != nullptr ? numbers + i : nullptr, .halves = halves != nullptr ? halves + i : nullptr};
  }
  [[nodiscard]] TERRACE_INLINE A at(std::int64_t i) const { return halves != nullptr ? A{widened(halves[i])} : numbers[i]; }
  TERRACE_INLINE void set_state(std::int64_t i, A value) const {
    if (halves != nullptr)
      halves[i] = state_to_bf16(static_cast<float>(value));
    else
      numbers[i] = value;
  }
};

// Random halves of a tile of 8-bit codes are drawn from a multiple of this on.
inline constexpr std::int64_t kRandomElements = 64;

// Weights are
//   `weight`                      numbers; with `copy`, their 16-bit copy is written, as `copy_is_fp16` says
//   `copy` and `low`              the upper and lower halves of numbers
//   `copy` and `random`           bf16, rounded with a random half each
//   `copy`, `low8` and `random`   the upper half and the 8 bits below it, rounded with a random half's upper byte each
template <class A>
struct Tile {
  A* weight = nullptr;
  std::uint16_t *copy = nullptr, *low = nullptr;
  std::uint8_t* low8 = nullptr;
  bool copy_is_fp16 = false;
  bool is_random = false;
  RandomBits random = {};  // from the tile's first element on
  Row<A> gradient, state0, state1;
  std::int64_t count = 0;
  std::int64_t first = 0;  // element of the chunk

  [[nodiscard]] bool is_coded() const { return state0.codes != nullptr; }  // then so are all states
  [[nodiscard]] TERRACE_INLINE bool has_halves() const {
    return copy != nullptr || gradient.halves != nullptr || state0.halves != nullptr || state1.halves != nullptr;
  }
};

}  // namespace terrace::elementwise
