// The random halves (random_half.h) of elements side by side, many blocks at once.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/optimizers/isa.h>

namespace terrace {

// Where a row of stochastically rounded elements takes its random bits.
struct RandomBits {
  std::uint64_t seed = 0, stream = 0, first = 0;  // `first`: the index of the first element
};

// So many elements share a draw: those from a multiple of it on.
inline constexpr std::int64_t kDrawnAtOnce = 256;
using DrawHalves = void(std::uint16_t* to, std::uint64_t seed, std::uint64_t stream, std::uint64_t draw);
DrawHalves* draw_halves(Isa isa);

}  // namespace terrace
