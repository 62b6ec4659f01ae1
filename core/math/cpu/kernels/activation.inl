// GELU, SwiGLU and GeGLU, both with the exact GELU and with its tanh approximation.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

// gelu_tanh(x) = x · sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³): no cancellation, and one exponential.
template <class A>
TERRACE_INLINE Vec<A> gelu_exponential(Vec<A> x) {
  return exponential(x * (x * x * A(0.044715) + A(1)) * A(-2 * 0.79788456080286535588));
}

// The derivative, from the exponential e and s = 1 / (1 + e).
template <class A>
TERRACE_INLINE Vec<A> gelu_slope(Vec<A> x, Vec<A> e, Vec<A> s) {
  return s + x * ((x * x * A(3 * 0.044715) + A(1)) * A(2 * 0.79788456080286535588)) * (s * (e * s));
}

template <class T, class A = Acc<T>>
void gelu(T* y, const T* x, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> v = load(x + i, w);
        store(y + i, v / (gelu_exponential<A>(v) + A(1)), w);
      });
}

template <class T, class A = Acc<T>>
void gelu_grad(T* dx, const T* dy, const T* x, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> v = load(x + i, w);
        const Vec<A> e = gelu_exponential<A>(v);
        store(dx + i, load(dy + i, w) * gelu_slope<A>(v, e, A(1) / (e + A(1))), w);
      });
}

template <class T, class A = Acc<T>>
void swiglu(T* y, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w);
        store(y + i, g / (exponential(-g) + A(1)) * load(up + i, w), w);
      });
}

template <class T, class A = Acc<T>>
void swiglu_grad(T* dgate, T* dup, const T* dy, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w), u = load(up + i, w), d = load(dy + i, w);
        const Vec<A> e = exponential(-g);
        const Vec<A> s = A(1) / (e + A(1));
        store(dup + i, d * (g * s), w);
        store(dgate + i, d * u * (s + g * (s * (e * s))), w);
      });
}

template <class T, class A = Acc<T>>
void geglu(T* y, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w);
        store(y + i, g / (gelu_exponential<A>(g) + A(1)) * load(up + i, w), w);
      });
}

template <class T, class A = Acc<T>>
void geglu_grad(T* dgate, T* dup, const T* dy, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w), u = load(up + i, w), d = load(dy + i, w);
        const Vec<A> e = gelu_exponential<A>(g);
        const Vec<A> s = A(1) / (e + A(1));
        store(dup + i, d * (g * s), w);
        store(dgate + i, d * u * gelu_slope<A>(g, e, s), w);
      });
}

// gelu_erf(x) = x · Φ(x), where Φ is the normal distribution.
template <class A>
TERRACE_INLINE Vec<A> normal_share(Vec<A> x) {
  return complementary_error<A>(x * A(-0.70710678118654752440)) * A(0.5);
}
// The derivative, from s = Φ(x).
template <class A>
TERRACE_INLINE Vec<A> gelu_erf_slope(Vec<A> x, Vec<A> s) {
  return s + x * (exponential(x * x * A(-0.5)) * A(0.39894228040143267794));
}

template <class T, class A = Acc<T>>
void gelu_erf(T* y, const T* x, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> v = load(x + i, w);
        store(y + i, v * normal_share<A>(v), w);
      });
}

template <class T, class A = Acc<T>>
void gelu_erf_grad(T* dx, const T* dy, const T* x, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> v = load(x + i, w);
        store(dx + i, load(dy + i, w) * gelu_erf_slope<A>(v, normal_share<A>(v)), w);
      });
}

template <class T, class A = Acc<T>>
void geglu_erf(T* y, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w);
        store(y + i, g * normal_share<A>(g) * load(up + i, w), w);
      });
}

template <class T, class A = Acc<T>>
void geglu_erf_grad(T* dgate, T* dup, const T* dy, const T* gate, const T* up, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> g = load(gate + i, w), u = load(up + i, w), d = load(dy + i, w);
        const Vec<A> s = normal_share<A>(g);
        store(dup + i, d * (g * s), w);
        store(dgate + i, d * u * gelu_erf_slope<A>(g, s), w);
      });
}

}  // namespace
}  // namespace terrace::cpu
