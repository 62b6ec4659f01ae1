// a · b + c, rounded once, where processors may have no instruction for it: the baseline's lanes.
//
// The product is exact in fp64. Its sum is rounded to odd there: cut, and odd where anything was cut off, so that rounding it
// once more, to fp32, is as if nothing had been rounded before (Boldo, Melquiond: "Emulation of FMA and correctly rounded sums:
// proved algorithms using rounding to odd", IEEE Transactions on Computers, 2008).
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cstdint>

#include <terrace/optimizers/each_isa.h>

namespace terrace {

template <int kLanes>
struct WideOf;
template <>
struct WideOf<4> {
  typedef double Numbers __attribute__((vector_size(32)));
  typedef std::int64_t Bits __attribute__((vector_size(32)));
};

// Compiled once and called: rules say `fused` so often that loops would be several times as long.
template <int kLanes, class Numbers>
__attribute__((noinline)) Numbers fused_in_fp64(Numbers a, Numbers b, Numbers c) {
  using Wide = typename WideOf<kLanes>::Numbers;
  using Bits = typename WideOf<kLanes>::Bits;
  const auto wide = [](Numbers x) __attribute__((always_inline)) { return __builtin_convertvector(x, Wide); };
  const Wide product = wide(a) * wide(b), other = wide(c), sum = product + other;
  const Wide part = sum - product, error = (product - (sum - part)) + (other - part);  // Knuth's: exact
  const Bits inexact = (error < 0) | (error > 0);                                      // of no infinity and no NaN
  const Bits outwards = (error < 0) ^ (sum < 0);
  const auto cut = reinterpret_cast<Bits>(sum) + (inexact & outwards);
  return __builtin_convertvector(reinterpret_cast<Wide>(cut | (inexact & 1)), Numbers);
}

}  // namespace terrace
