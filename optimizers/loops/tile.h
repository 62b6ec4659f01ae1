// A tile: consecutive elements of a chunk on which a loop works at once.
//
// Internal to optimizers/. Threads: values; the bytes are the chunk's or a buffer's.
#pragma once

#include <cstdint>
#include <type_traits>

#include <terrace/optimizers/formats/bf16_bits.h>
#include <terrace/optimizers/formats/random_half.h>

namespace terrace::rules::elementwise {

// Numbers of the arithmetic's type, or bf16 or 8-bit codes that the loop itself converts. All null: the rule has no such row.
template <class A>
struct Row {
  A* numbers = nullptr;
  std::uint16_t* halves = nullptr;
  std::uint8_t* codes = nullptr;  // whole blocks (dynamic8.h) and their scales, for loops that take them
  float* scales = nullptr;

  // The row from element i on. Not for codes: loops over codes take whole tiles.
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

// The kinds of rows that a loop is compiled for: weights by the arrays beside them, states and gradients by type.
enum class WeightRows : std::uint8_t { numbers, bf16_copy, fp16_copy, low16, low8, random };
enum class Rows : std::uint8_t { numbers, halves, codes };
template <class A>
WeightRows weights_of(const Tile<A>& t) {
  if (t.weight != nullptr)
    return t.copy == nullptr ? WeightRows::numbers : t.copy_is_fp16 ? WeightRows::fp16_copy : WeightRows::bf16_copy;
  if (t.low != nullptr) return WeightRows::low16;
  return t.low8 != nullptr ? WeightRows::low8 : WeightRows::random;
}

// Tells the compiler which rows a tile has.
template <Rows kRows, class A>
TERRACE_INLINE void know(Row<A>& row) {
  if (kRows != Rows::numbers) row.numbers = nullptr;
  if (kRows != Rows::halves) row.halves = nullptr;
  if (kRows != Rows::codes) row.codes = nullptr;
  if ((kRows == Rows::numbers && row.numbers == nullptr) || (kRows == Rows::halves && row.halves == nullptr) ||
      (kRows == Rows::codes && row.codes == nullptr))
    __builtin_unreachable();
}
template <WeightRows kWeights, class A>
TERRACE_INLINE void know(Tile<A>& t) {
  constexpr bool kNumbers = kWeights <= WeightRows::fp16_copy;
  if (!kNumbers) t.weight = nullptr;
  if (kWeights == WeightRows::numbers) t.copy = nullptr;
  if (kWeights != WeightRows::low16) t.low = nullptr;
  if (kWeights != WeightRows::low8) t.low8 = nullptr;
  t.copy_is_fp16 = kWeights == WeightRows::fp16_copy;
  t.is_random = kWeights >= WeightRows::low8;
  if ((kNumbers && t.weight == nullptr) || (kWeights != WeightRows::numbers && t.copy == nullptr) ||
      (kWeights == WeightRows::low16 && t.low == nullptr) || (kWeights == WeightRows::low8 && t.low8 == nullptr))
    __builtin_unreachable();
}

}  // namespace terrace::rules::elementwise
