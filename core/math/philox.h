// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): random numbers
// as a pure function of (seed, stream, index), so that any chunk, rank or thread draws the same ones.
//
// Threads: any.
#pragma once

#include <array>
#include <cstdint>

namespace terrace::math {

using PhiloxBlock = std::array<std::uint32_t, 4>;
PhiloxBlock philox(PhiloxBlock counter, std::array<std::uint32_t, 2> key);

// Draws keyed by a global index. `stream` separates uses (a tensor's name hash, the data order, sampling).
std::uint32_t random_u32(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);
double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index);  // [0, 1), 53 bits
double random_normal(std::uint64_t seed, std::uint64_t stream,
                     std::uint64_t index);  // Box-Muller, own log/cos: same bits everywhere
std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t index, std::uint64_t bound);

// out[i] = float(std * random_normal(seed, stream, first_index + i)), the same bits on every ISA, in bulk (SIMD).
void fill_normal(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint64_t first_index,
                 double std);

// A stable 64-bit stream number for a name (XXH64).
std::uint64_t stream_of(const char* name);

}  // namespace terrace::math
