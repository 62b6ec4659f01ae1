// Element by element: sums, scales, soft caps, conversions; dot products.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

template <class T, class A = Acc<T>>
void add(T* y, const T* x, const T* r, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) { store(y + i, load(x + i, w) + load(r + i, w), w); });
}

template <class T, class A = Acc<T>>
void scale(T* y, const T* x, const T* gain, i64 n, bool accumulate) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> v = load(x + i, w) * load(gain + i, w);
        store(y + i, accumulate ? load(y + i, w) + v : v, w);
      });
}

template <class T, class A = Acc<T>>
void multiply(T* y, const T* x, i64 n, A factor) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) { store(y + i, load(x + i, w) * factor, w); });
}

template <class T, class A = Acc<T>>
void soft_cap(T* y, const T* x, i64 n, A factor, A cap) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w)
             __attribute__((always_inline)) { store(y + i, hyperbolic_tangent(load(x + i, w) * factor / cap) * cap, w); });
}

template <class T, class A = Acc<T>>
void soft_cap_grad(T* dx, const T* dy, const T* y, i64 n, A factor, A cap) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> t = load(y + i, w) / cap;
        store(dx + i, load(dy + i, w) * ((A(1) - t * t) * factor), w);
      });
}

// fp32 arithmetic unless fp64 takes part.
template <class To, class From, bool accumulate>
void convert(void* to, const void* from, i64 n) {
  To* y = static_cast<To*>(to);
  const From* x = static_cast<const From*>(from);
  if constexpr (sizeof(To) == 8 || sizeof(From) == 8) {
    sweep<8>(
        n, [&](i64 i, auto w) __attribute__((always_inline)) {
          const VecD v = load_fp64(x + i, w);
          store_fp64(y + i, accumulate ? load_fp64(y + i, w) + v : v, w);
        });
  } else {
    sweep<16>(
        n, [&](i64 i, auto w) __attribute__((always_inline)) {
          const VecF v = load(x + i, w);
          store(y + i, accumulate ? load(y + i, w) + v : v, w);
        });
  }
}

template <class T, class A = Acc<T>>
A dot(const T* x, const T* y, i64 n) {
  return sum_over<A>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) { return load(x + i, w) * load(y + i, w); });
}

template <class T, class A = Acc<T>>
void axpy(A* y, A a, const T* x, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) { store(y + i, load(y + i, w) + load(x + i, w) * a, w); });
}

// ---- fp64 sums ------------------------------------------------------------------------------------------------------

template <class T>
double sum(const T* x, i64 n) {
  return sum_over<double>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) { return load_fp64(x + i, w); });
}

template <class T>
double sum_of_squares(const T* x, i64 n) {
  return sum_over<double>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const VecD v = load_fp64(x + i, w);
        return v * v;
      });
}

}  // namespace
}  // namespace terrace::cpu
