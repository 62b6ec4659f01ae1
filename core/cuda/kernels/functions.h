// Elementary functions of kernels. On the host, where tests run them, they come from the C library; on a GPU the last bit may
// differ.
//
// Threads: any.
#pragma once

#include <cmath>
#include <cstdint>

#include <terrace/core/cuda/arithmetic.h>

namespace terrace::cuda {

// Limits an exponential that may overflow, so that e / (1 + e) and similar quotients stay numbers. NaN stays NaN.
TERRACE_HD float finite(float e) { return e > 1e38F ? 1e38F : e; }
TERRACE_HD double finite(double e) { return e > 1e304 ? 1e304 : e; }

// exp for x ≤ 0 in a softmax: the relative error is a few units of |x|·2⁻²⁴, and where |x| is large the term itself is small.
TERRACE_HD float softmax_exponential(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return std::exp(x);
#endif
}
TERRACE_HD double softmax_exponential(double x) { return std::exp(x); }

template <class A>
TERRACE_HD A capped(A x, A cap) {
  return std::tanh(x / cap) * cap;
}
// The derivative of capped(), from its result.
template <class A>
TERRACE_HD A cap_slope(A y, A cap) {
  const A t = y / cap;
  return A(1) - t * t;
}

template <class A>
struct SineCosine {
  A sine, cosine;
};
// The sine and cosine of an angle of `turns`, −1/2 to 1/2.
template <class A>
TERRACE_HD SineCosine<A> sine_and_cosine(A turns) {
  SineCosine<A> r;
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(A) == 4) {
    sincospif(2 * turns, &r.sine, &r.cosine);
  } else {
    sincospi(2 * turns, &r.sine, &r.cosine);
  }
#else
  const double angle = 2 * 3.14159265358979323846 * static_cast<double>(turns);
  r.sine = static_cast<A>(std::sin(angle));
  r.cosine = static_cast<A>(std::cos(angle));
#endif
  return r;
}

}  // namespace terrace::cuda
