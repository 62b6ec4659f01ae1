// The functions that rules call, for one number; simd.h has them for several.
//
// Internal to optimizers/. Threads: any.
#pragma once

#include <cmath>

#include <terrace/optimizers/formats/each_isa.h>

namespace terrace::rules {

TERRACE_INLINE float root(float x) { return std::sqrt(x); }
TERRACE_INLINE double root(double x) { return std::sqrt(x); }
// a · b + c, rounded once.
TERRACE_INLINE float fused(float a, float b, float c) { return std::fma(a, b, c); }
TERRACE_INLINE double fused(double a, double b, double c) { return std::fma(a, b, c); }
template <class A>
TERRACE_INLINE A choose(bool condition, A yes, A no) {
  return condition ? yes : no;
}

}  // namespace terrace::rules
