// Vectors of 64 bytes in plain g++ types: loads, stores, and sweeps and sums with a fixed lane order.
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

using i64 = std::int64_t;
using u16 = std::uint16_t;
typedef float VecF __attribute__((vector_size(64)));
typedef double VecD __attribute__((vector_size(64)));
typedef std::int32_t VecI __attribute__((vector_size(64)));
typedef std::uint32_t VecU __attribute__((vector_size(64)));
typedef std::int64_t VecL __attribute__((vector_size(64)));
typedef std::uint16_t VecH __attribute__((vector_size(32)));
typedef float VecF8 __attribute__((vector_size(32)));
typedef std::uint32_t VecU8 __attribute__((vector_size(32)));
typedef std::uint16_t VecH8 __attribute__((vector_size(16)));

#define TERRACE_INLINE static inline __attribute__((always_inline))

template <class A>
struct Vector;
template <>
struct Vector<float> {
  using type = VecF;
  using mask = VecI;
  static constexpr i64 lanes = 16;
};
template <>
struct Vector<double> {
  using type = VecD;
  using mask = VecL;
  static constexpr i64 lanes = 8;
};
template <class A>
using Vec = typename Vector<A>::type;
template <class T>
struct Arithmetic {
  using type = float;
};
template <>
struct Arithmetic<double> {
  using type = double;
};
template <class T>
using Acc = typename Arithmetic<T>::type;

// A whole vector, or the first n lanes of one.
struct Full {};
struct Part {
  i64 n;
};

// ---- loads and stores -----------------------------------------------------------------------------------------------

TERRACE_INLINE VecU bits(VecF v) { return reinterpret_cast<VecU>(v); }
TERRACE_INLINE VecF from_bits(VecU v) { return reinterpret_cast<VecF>(v); }

template <class V, class T>
TERRACE_INLINE V load_raw(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TERRACE_INLINE VecF load(const float* p, Full) { return load_raw<VecF>(p); }
TERRACE_INLINE VecD load(const double* p, Full) { return load_raw<VecD>(p); }
TERRACE_INLINE VecF load(const u16* p, Full) { return from_bits(__builtin_convertvector(load_raw<VecH>(p), VecU) << 16); }
TERRACE_INLINE VecF load(const Fp16* p, Full) {
  return fp16_bits::widened<VecF>(__builtin_convertvector(load_raw<VecH>(p), VecU));
}
template <class T>
TERRACE_INLINE Vec<Acc<T>> load(const T* p, Part part) {
  T padded[Vector<Acc<T>>::lanes] = {};
  for (i64 i = 0; i < part.n; ++i) padded[i] = p[i];
  return load(padded, Full{});
}
TERRACE_INLINE void store(float* p, VecF v, Full) { __builtin_memcpy(p, &v, sizeof v); }
TERRACE_INLINE void store(double* p, VecD v, Full) { __builtin_memcpy(p, &v, sizeof v); }
template <class U>
TERRACE_INLINE U rounded_to_bf16(U u) {  // nearest even; a NaN stays a quiet NaN
  const U nearest = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  return (u & 0x7fffffffU) > 0x7f800000U ? ((u >> 16) | 0x40U) : nearest;
}
TERRACE_INLINE void store(u16* p, VecF v, Full) {
  const VecH h = __builtin_convertvector(rounded_to_bf16(bits(v)), VecH);
  __builtin_memcpy(p, &h, sizeof h);
}
TERRACE_INLINE void store(Fp16* p, VecF v, Full) {
  const VecH h = __builtin_convertvector(fp16_bits::rounded<VecU>(v), VecH);
  __builtin_memcpy(p, &h, sizeof h);
}
template <class T>
TERRACE_INLINE void store(T* p, Vec<Acc<T>> v, Part part) {
  T padded[Vector<Acc<T>>::lanes];
  store(padded, v, Full{});
  for (i64 i = 0; i < part.n; ++i) p[i] = padded[i];
}
// Eight elements of any type as fp64.
TERRACE_INLINE VecD load_fp64(const double* p, Full) { return load_raw<VecD>(p); }
TERRACE_INLINE VecD load_fp64(const float* p, Full) { return __builtin_convertvector(load_raw<VecF8>(p), VecD); }
TERRACE_INLINE VecD load_fp64(const u16* p, Full) {
  const VecU8 u = __builtin_convertvector(load_raw<VecH8>(p), VecU8) << 16;
  return __builtin_convertvector(reinterpret_cast<VecF8>(u), VecD);
}
TERRACE_INLINE VecD load_fp64(const Fp16* p, Full) {
  const VecU8 u = __builtin_convertvector(load_raw<VecH8>(p), VecU8);
  return __builtin_convertvector(fp16_bits::widened<VecF8>(u), VecD);
}
template <class T>
TERRACE_INLINE VecD load_fp64(const T* p, Part part) {
  T padded[8] = {};
  for (i64 i = 0; i < part.n; ++i) padded[i] = p[i];
  return load_fp64(padded, Full{});
}
TERRACE_INLINE void store_fp64(double* p, VecD v, Full) { __builtin_memcpy(p, &v, sizeof v); }
TERRACE_INLINE void store_fp64(float* p, VecD v, Full) {
  const VecF8 f = __builtin_convertvector(v, VecF8);
  __builtin_memcpy(p, &f, sizeof f);
}
TERRACE_INLINE void store_fp64(u16* p, VecD v, Full) {
  const VecF8 f = __builtin_convertvector(v, VecF8);
  const VecH8 h = __builtin_convertvector(rounded_to_bf16(reinterpret_cast<VecU8>(f)), VecH8);
  __builtin_memcpy(p, &h, sizeof h);
}
TERRACE_INLINE void store_fp64(Fp16* p, VecD v, Full) {
  const VecF8 f = __builtin_convertvector(v, VecF8);
  const VecH8 h = __builtin_convertvector(fp16_bits::rounded<VecU8>(f), VecH8);
  __builtin_memcpy(p, &h, sizeof h);
}
template <class T>
TERRACE_INLINE void store_fp64(T* p, VecD v, Part part) {
  T padded[8];
  store_fp64(padded, v, Full{});
  for (i64 i = 0; i < part.n; ++i) p[i] = padded[i];
}

// ---- sweeps and reductions with a fixed lane order ------------------------------------------------------------------

template <class A>
TERRACE_INLINE typename Vector<A>::mask within(Part part) {
  if constexpr (sizeof(A) == 4) {
    const VecI lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lane < static_cast<std::int32_t>(part.n < 16 ? part.n : 16);
  } else {
    const VecL lane = {0, 1, 2, 3, 4, 5, 6, 7};
    return lane < part.n;
  }
}
TERRACE_INLINE VecF keep(VecF v, Part part) { return within<float>(part) ? v : VecF{}; }
TERRACE_INLINE VecD keep(VecD v, Part part) { return within<double>(part) ? v : VecD{}; }

template <i64 lanes, class F>
TERRACE_INLINE void sweep(i64 n, F&& f) {
  i64 i = 0;
  for (; i + lanes <= n; i += lanes) f(i, Full{});
  if (i < n) f(i, Part{n - i});
}

template <class A>
TERRACE_INLINE A fold(Vec<A> v) {
  constexpr i64 lanes = Vector<A>::lanes;
  A lane[lanes];
  __builtin_memcpy(lane, &v, sizeof v);
  for (i64 width = lanes / 2; width > 0; width /= 2) {
    for (i64 i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

// The sum of f over [0, n): four interleaved accumulators, folded as a tree.
template <class A, class F>
TERRACE_INLINE A sum_over(i64 n, F&& f) {
  constexpr i64 lanes = Vector<A>::lanes;
  Vec<A> s0{}, s1{}, s2{}, s3{};
  i64 i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 += f(i, Full{});
    s1 += f(i + lanes, Full{});
    s2 += f(i + 2 * lanes, Full{});
    s3 += f(i + 3 * lanes, Full{});
  }
  for (; i + lanes <= n; i += lanes) s0 += f(i, Full{});
  if (i < n) s1 += keep(f(i, Part{n - i}), Part{n - i});
  return fold<A>((s0 + s1) + (s2 + s3));
}

template <class A>
TERRACE_INLINE A fold_max(Vec<A> v) {
  A lane[Vector<A>::lanes];
  __builtin_memcpy(lane, &v, sizeof v);
  A best = lane[0];
  for (i64 i = 1; i < Vector<A>::lanes; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
}

template <class T, class A = Acc<T>>
TERRACE_INLINE A max_of(const T* x, i64 n) {
  const A lowest = -__builtin_inf();
  Vec<A> best = Vec<A>{} + lowest;
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        Vec<A> v = load(x + i, w);
        if constexpr (sizeof w == sizeof(Part)) v = within<A>(w) ? v : Vec<A>{} + lowest;
        best = v > best ? v : best;
      });
  return fold_max<A>(best);
}

}  // namespace
}  // namespace terrace::cpu
