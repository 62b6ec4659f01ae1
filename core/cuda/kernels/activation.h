// Activations and their gradients, with one exponential per element. Where it overflows, the quotients take their limits.
#pragma once

#include <terrace/core/cuda/kernels/vectors.h>

namespace terrace::cuda {

// gelu_tanh(x) = x · sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³): no cancellation.
template <class A>
TERRACE_KERNEL A gelu_exponential(A x) {
  const A e = std::exp(x * (x * x * A(0.044715) + A(1)) * A(-2 * 0.79788456080286535588));
  return finite(e);
}
template <class A>
TERRACE_KERNEL A gelu(A x) {
  return x / (gelu_exponential(x) + A(1));
}
template <class A>
TERRACE_KERNEL A gelu_grad(A d, A x) {
  const A e = gelu_exponential(x), s = A(1) / (e + A(1));
  const A slope = (x * x * A(3 * 0.044715) + A(1)) * A(2 * 0.79788456080286535588);
  return d * (s + x * slope * (s * (e * s)));
}

// gelu_erf(x) = x · Φ(x), where Φ is the normal distribution.
template <class A>
TERRACE_KERNEL A normal_share(A x) {
  return A(0.5) * std::erfc(x * A(-0.70710678118654752440));
}
template <class A>
TERRACE_KERNEL A gelu_erf(A x) {
  return x * normal_share(x);
}
template <class A>
TERRACE_KERNEL A gelu_erf_grad(A d, A x) {
  return d * (normal_share(x) + x * (std::exp(x * x * A(-0.5)) * A(0.39894228040143267794)));
}

template <class A>
TERRACE_KERNEL A swiglu(A gate, A up) {
  return gate / (finite(std::exp(-gate)) + A(1)) * up;
}
template <class A>
struct GatedGrad {
  A gate, up;
};
template <class A>
TERRACE_KERNEL GatedGrad<A> swiglu_grad(A d, A gate, A up) {
  const A e = finite(std::exp(-gate)), s = A(1) / (e + A(1));
  return {d * up * (s + gate * (s * (e * s))), d * (gate * s)};
}

// The nonlinear function that is applied to a gate, or to a value that has no gate.
enum class Bend : std::uint8_t { silu, gelu_tanh, gelu_erf };

template <Bend kBend, class A>
TERRACE_KERNEL A bent(A x) {
  return kBend == Bend::gelu_erf ? gelu_erf(x) : gelu(x);
}
template <Bend kBend, class A>
TERRACE_KERNEL A bent_grad(A d, A x) {
  return kBend == Bend::gelu_erf ? gelu_erf_grad(d, x) : gelu_grad(d, x);
}
template <Bend kBend, class A>
TERRACE_KERNEL A gated(A gate, A up) {
  if constexpr (kBend == Bend::silu)
    return swiglu(gate, up);
  else
    return bent<kBend>(gate) * up;
}
template <Bend kBend, class A>
TERRACE_KERNEL GatedGrad<A> gated_grad(A d, A gate, A up) {
  if constexpr (kBend == Bend::silu)
    return swiglu_grad(d, gate, up);
  else
    return {bent_grad<kBend>(d * up, gate), d * bent<kBend>(gate)};
}

template <class T>
struct GeluArgs {
  T* out;       // y, or dx
  const T* dy;  // null: forward
  const T* x;
  std::int64_t elements;
  bool whole;
};
template <class T, Bend kBend>
struct Gelu {
  static constexpr int kThreads = 256, kVectors = 4;  // per thread
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const GeluArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    for_block_vectors<W, kVectors>(lane, a.elements, [&](std::int64_t i, std::int64_t left) {
      A v[W], d[W];
      load(v, a.x + i, left, a.whole);
      if (a.dy) {
        load(d, a.dy + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] = bent_grad<kBend>(d[k], v[k]);
      } else {
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) v[k] = bent<kBend>(v[k]);
      }
      store(a.out + i, v, left, a.whole);
    });
  }
};

template <class T>
struct GatedArgs {
  T* out;  // y[rows, columns], or dx[rows, 2 · columns]
  const T* dy;
  const T* x;  // [rows, 2 · columns]: gate, up
  std::int64_t columns;
  bool whole;
};
// One block per row, both for the forward (dy null) and for the gradient.
template <class T, Bend kBend>
struct GatedRows {
  static constexpr int kThreads = 256;
  template <class Lane>
  TERRACE_KERNEL void operator()(Lane& lane, const GatedArgs<T>& a) const {
    using A = Acc<T>;
    constexpr int W = kWidth<T>;
    const std::int64_t row = lane.block_x(), f = a.columns;
    const T *const gate = a.x + 2 * row * f, *const up = gate + f;
    for_vectors<W>(lane, f, [&](std::int64_t i, std::int64_t left) {
      A g[W], u[W];
      load(g, gate + i, left, a.whole);
      load(u, up + i, left, a.whole);
      if (a.dy) {
        A d[W];
        load(d, a.dy + row * f + i, left, a.whole);
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) {
          const auto gradient = gated_grad<kBend>(d[k], g[k], u[k]);
          g[k] = gradient.gate;
          u[k] = gradient.up;
        }
        store(a.out + 2 * row * f + i, g, left, a.whole);
        store(a.out + (2 * row + 1) * f + i, u, left, a.whole);
      } else {
        TERRACE_UNROLL
        for (int k = 0; k < W; ++k) g[k] = gated<kBend>(g[k], u[k]);
        store(a.out + row * f + i, g, left, a.whole);
      }
    });
  }
};

}  // namespace terrace::cuda
