// The source of every kernel table; each kernels_<isa>.cpp includes it once. Everything here has internal linkage and uses
// no inline function of another header, so that no code of one instruction set can be linked into another's path.

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

// ---- sweeps and reductions with a fixed lane order -------------------------------------------------------------------

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

// ---- elementary functions --------------------------------------------------------------------------------------------

// exp by 2^n · p(r), |r| ≤ ln2/2 (Cephes' polynomial). Results below 2^-126 are zero; arguments above 88 give exp(88), which is
// finite, so that e/(1 + e) needs no care. NaN stays NaN.
TERRACE_INLINE VecF exponential(VecF x) {
  const float lowest = -87.33654F;
  VecF c = x > 88.0F ? VecF{} + 88.0F : x;
  c = c < lowest ? VecF{} + lowest : c;
  const float magic = 12582912.0F;  // 1.5·2^23: adding it rounds to an integer kept in the low bits
  const VecF t = c * 1.44269504088896341F + magic;
  const VecF n = t - magic;
  VecF r = c - n * 0.693359375F;
  r = r - n * -2.12194440e-4F;
  VecF p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * (r * r) + r + 1.0F;
  const VecF power = from_bits((bits(t) + (127U - 0x4b400000U)) << 23);
  const VecF y = p * power;
  return x < lowest ? VecF{} : y;
}
TERRACE_INLINE VecD exponential(VecD x) {
  double lane[8];
  __builtin_memcpy(lane, &x, sizeof x);
  for (double& v : lane) v = __builtin_exp(v > 700.0 ? 700.0 : v);
  return load(lane, Full{});
}
template <class A>
TERRACE_INLINE A scalar_exponential(A x) {
  const Vec<A> v = exponential(Vec<A>{} + x);
  return v[0];
}

// tanh by Cephes' polynomial near 0, where the quotient would cancel, and by the exponential elsewhere.
TERRACE_INLINE VecF hyperbolic_tangent(VecF x) {
  const VecF magnitude = from_bits(bits(x) & 0x7fffffffU), z = x * x;
  VecF p = z * -5.70498872745e-3F + 2.06390887954e-2F;
  p = p * z + -5.37397155531e-2F;
  p = p * z + 1.33314422036e-1F;
  p = p * z + -3.33332819422e-1F;
  const VecF near = p * z * x + x;
  const VecF e = exponential(magnitude * -2.0F);
  const VecF far = (1.0F - e) / (1.0F + e);
  const VecF signed_far = from_bits(bits(far) | (bits(x) & 0x80000000U));
  return magnitude < 0.625F ? near : signed_far;
}
// The C library's, lane by lane.
TERRACE_INLINE VecD hyperbolic_tangent(VecD x) {
  double lane[8];
  __builtin_memcpy(lane, &x, sizeof x);
  for (double& v : lane) v = __builtin_tanh(v);
  return load(lane, Full{});
}
template <class A>
TERRACE_INLINE Vec<A> logarithm(Vec<A> x) {
  A lane[Vector<A>::lanes];
  store(lane, x, Full{});
  for (A& v : lane) v = static_cast<A>(__builtin_log(static_cast<double>(v)));
  return load(lane, Full{});
}

// ---- normalisation ---------------------------------------------------------------------------------------------------

template <class T, class A = Acc<T>>
void norm_row(T* y, A* mean, A* rstd, const T* x, const T* gain, const T* bias, i64 c, double eps, A offset) {
  const A count = static_cast<A>(c);
  A m = 0;
  if (mean) {
    m = sum_over<A>(
            c, [&](i64 i, auto w) __attribute__((always_inline)) { return load(x + i, w); }) /
        count;
    *mean = m;
  }
  const A variance = sum_over<A>(
                         c,
                         [&](i64 i, auto w) __attribute__((always_inline)) {
                           const Vec<A> d = load(x + i, w) - m;
                           return d * d;
                         }) /
                     count;
  const A scaled = variance + static_cast<A>(eps);
  A root;
  if constexpr (sizeof(A) == 8)
    root = __builtin_sqrt(scaled);
  else
    root = __builtin_sqrtf(scaled);
  const A r = A(1) / root;
  *rstd = r;
  if (bias) {
    sweep<Vector<A>::lanes>(
        c, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(y + i, (load(x + i, w) - m) * r * (load(gain + i, w) + offset) + load(bias + i, w), w);
        });
  } else {
    sweep<Vector<A>::lanes>(
        c, [&](i64 i, auto w)
               __attribute__((always_inline)) { store(y + i, (load(x + i, w) - m) * r * (load(gain + i, w) + offset), w); });
  }
}

template <class T, class A = Acc<T>>
void norm_input_grad_row(T* dx, const T* dy, const T* x, const T* gain, const A* mean, A rstd, i64 c, bool accumulate,
                         A offset) {
  const A count = static_cast<A>(c);
  const A m = mean ? *mean : A(0);
  const A g_mean =
      mean ? sum_over<A>(
                 c, [&](i64 i, auto w) __attribute__((always_inline)) { return load(dy + i, w) * (load(gain + i, w) + offset); }) /
                 count
           : A(0);
  const A gx_mean =
      sum_over<A>(
          c, [&](i64 i, auto w) __attribute__((
                 always_inline)) { return load(dy + i, w) * (load(gain + i, w) + offset) * ((load(x + i, w) - m) * rstd); }) /
      count;
  sweep<Vector<A>::lanes>(
      c, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> normed = (load(x + i, w) - m) * rstd;
        const Vec<A> d = (load(dy + i, w) * (load(gain + i, w) + offset) - g_mean - normed * gx_mean) * rstd;
        store(dx + i, accumulate ? load(dx + i, w) + d : d, w);
      });
}

// f(row, column, width, totals) adds one vector; blocks of rows are summed alone, then folded in order.
template <class A, int outputs, class F>
TERRACE_INLINE void column_blocks(A* const* out, i64 rows, i64 columns, F&& f) {
  constexpr i64 lanes = Vector<A>::lanes;
  sweep<lanes>(
      columns, [&](i64 j, auto w) __attribute__((always_inline)) {
        Vec<A> total[outputs] = {};
        for (i64 begin = 0; begin < rows; begin += kRowBlock) {
          const i64 end = begin + kRowBlock < rows ? begin + kRowBlock : rows;
          Vec<A> block[outputs] = {};
          for (i64 row = begin; row < end; ++row) f(row, j, w, block);
          for (int o = 0; o < outputs; ++o) total[o] += block[o];
        }
        for (int o = 0; o < outputs; ++o) store(out[o] + j, total[o], w);
      });
}

template <class T, class A = Acc<T>>
void norm_weight_grad(A* dgain, A* dbias, const T* dy, const T* x, const A* mean, const A* rstd, i64 rows, i64 columns,
                      i64 row_elements) {
  A unused[kColumns];
  A* const out[2] = {dgain, dbias ? dbias : unused};
  column_blocks<A, 2>(
      out, rows, columns, [&](i64 row, i64 j, auto w, Vec<A>* block) __attribute__((always_inline)) {
        const Vec<A> d = load(dy + row * row_elements + j, w);
        const A m = mean ? mean[row] : A(0);
        block[0] += d * ((load(x + row * row_elements + j, w) - m) * (rstd ? rstd[row] : A(1)));
        block[1] += d;
      });
}

template <class T, class A = Acc<T>>
void column_sums(A* sums, const T* x, i64 rows, i64 columns, i64 row_elements) {
  A* const out[1] = {sums};
  column_blocks<A, 1>(
      out, rows, columns, [&](i64 row, i64 j, auto w, Vec<A>* block) __attribute__((always_inline)) {
        block[0] += load(x + row * row_elements + j, w);
      });
}

// ---- rotary positions ------------------------------------------------------------------------------------------------

template <class T, class A = Acc<T>>
void rotate(T* x, const A* cosine, const A* sine, i64 half, bool inverse) {
  const A sign = inverse ? A(-1) : A(1);
  sweep<Vector<A>::lanes>(
      half, [&](i64 i, auto w) __attribute__((always_inline)) {
        const Vec<A> a = load(x + i, w), b = load(x + half + i, w);
        const Vec<A> c = load(cosine + i, w), s = load(sine + i, w) * sign;
        store(x + i, a * c - b * s, w);
        store(x + half + i, b * c + a * s, w);
      });
}

// ---- activations -----------------------------------------------------------------------------------------------------

// gelu_tanh(x) = x · sigmoid(2u), u = sqrt(2/π)(x + 0.044715 x³): no cancellation, and one exponential.
template <class A>
TERRACE_INLINE Vec<A> gelu_exponential(Vec<A> x) {
  return exponential(x * (x * x * A(0.044715) + A(1)) * A(-2 * 0.79788456080286535588));
}

// Its slope, from e, the exponential, and s = 1 / (1 + e).
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

// ---- elementwise -----------------------------------------------------------------------------------------------------

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

// ---- softmax ---------------------------------------------------------------------------------------------------------

// Rows are padded to whole vectors, so the last one is loaded whole and masked: causal rows end anywhere, and tails copied
// through memory cost more than the exponentials.
template <class A, class F>
TERRACE_INLINE void padded_sweep(A* s, i64 valid, i64 width, F&& f) {
  constexpr i64 lanes = Vector<A>::lanes;
  i64 i = 0;
  for (; i + lanes <= valid; i += lanes) f(i, Part{lanes});
  if (i < valid) {
    f(i, Part{valid - i});
    i += lanes;
  }
  for (; i < width; i += lanes) store(s + i, Vec<A>{}, Full{});
}

template <class A>
A softmax_row(A* s, i64 valid, i64 width, A scale) {
  constexpr i64 lanes = Vector<A>::lanes;
  const A lowest = -__builtin_inf();
  Vec<A> best = Vec<A>{} + lowest;
  for (i64 i = 0; i < valid; i += lanes) {
    const Vec<A> v = load(s + i, Full{});
    const Vec<A> w = within<A>(Part{valid - i}) ? v : Vec<A>{} + lowest;
    best = w > best ? w : best;
  }
  const A m = fold_max<A>(best) * scale;
  Vec<A> sums{};
  padded_sweep(
      s, valid, width, [&](i64 i, Part part) __attribute__((always_inline)) {
        const Vec<A> e = keep(exponential(load(s + i, Full{}) * scale - m), part);
        store(s + i, e, Full{});
        sums += e;
      });
  const A total = fold<A>(sums);
  const A inverse = A(1) / total;
  for (i64 i = 0; i < valid; i += lanes) store(s + i, load(s + i, Full{}) * inverse, Full{});
  return m + static_cast<A>(__builtin_log(static_cast<double>(total)));
}

template <class A>
void softmax_grad_row(A* s, A* dp, i64 valid, i64 width, A scale, A lse, A d) {
  padded_sweep(
      s, valid, width, [&](i64 i, Part part) __attribute__((always_inline)) {
        const Vec<A> p = keep(exponential(load(s + i, Full{}) * scale - lse), part);
        store(s + i, p, Full{});
        store(dp + i, keep(p * (load(dp + i, Full{}) - d) * scale, part), Full{});
      });
  for (i64 i = (valid + Vector<A>::lanes - 1) / Vector<A>::lanes * Vector<A>::lanes; i < width; i += Vector<A>::lanes) {
    store(dp + i, Vec<A>{}, Full{});
  }
}

template <class T, class A = Acc<T>>
double cross_entropy_row(T* dlogits, const T* logits, i64 vocabulary, std::int32_t target, double scale) {
  if (target < 0) {
    if (dlogits) {
      for (i64 i = 0; i < vocabulary; ++i) dlogits[i] = T{};
    }
    return 0;
  }
  const A m = max_of(logits, vocabulary);
  const A total = sum_over<A>(
      vocabulary, [&](i64 i, auto w) __attribute__((always_inline)) { return exponential(load(logits + i, w) - m); });
  const Vec<A> at_target = load(logits + target, Part{1});
  const A hit = at_target[0];
  if (dlogits) {
    const A factor = static_cast<A>(scale) / total;
    // The target's entry is written apart, in one rounding: (p − 1)·scale.
    const A p = scalar_exponential<A>(hit - m) / total;
    sweep<Vector<A>::lanes>(
        vocabulary, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(dlogits + i, exponential(load(logits + i, w) - m) * factor, w);
        });
    store(dlogits + target, Vec<A>{} + (p - A(1)) * static_cast<A>(scale), Part{1});
  }
  return __builtin_log(static_cast<double>(total)) + (static_cast<double>(m) - static_cast<double>(hit));
}

// ---- softmax of a row in parts ---------------------------------------------------------------------------------------

// The largest is taken out of a sum of exponentials; if all are −∞, nothing is: −∞ − −∞ would be NaN.
template <class A>
TERRACE_INLINE Vec<A> taken_out(Vec<A> largest) {
  return largest == -__builtin_inf() ? Vec<A>{} : largest;
}

template <class T, class A = Acc<T>>
A log_sum_exp_row(const T* logits, i64 columns) {
  const A m = taken_out<A>(Vec<A>{} + max_of(logits, columns))[0];
  const A total = sum_over<A>(
      columns, [&](i64 i, auto w) __attribute__((always_inline)) { return exponential(load(logits + i, w) - m); });
  return m + static_cast<A>(__builtin_log(static_cast<double>(total)));
}

template <class A>
void merge_log_sums(A* whole, const A* parts, i64 count, i64 stride, const std::int32_t* targets, i64 n) {
  sweep<Vector<A>::lanes>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        Vec<A> largest = load(parts + i, w);
        for (i64 k = 1; k < count; ++k) {
          const Vec<A> v = load(parts + k * stride + i, w);
          largest = v > largest ? v : largest;
        }
        const Vec<A> m = taken_out<A>(largest);
        Vec<A> total{};
        for (i64 k = 0; k < count; ++k) total += exponential(load(parts + k * stride + i, w) - m);
        store(whole + i, m + logarithm<A>(total), w);
      });
  for (i64 i = 0; i < n; ++i) {
    if (targets[i] == -1) whole[i] = __builtin_inf();
  }
}

template <class T, class A = Acc<T>>
double cross_entropy_part_row(T* dlogits, const T* logits, i64 columns, std::int32_t target, A lse, double scale) {
  const Vec<A> at_target = target < 0 ? Vec<A>{} : load(logits + target, Part{1});
  const A hit = at_target[0];
  if (dlogits && lse == __builtin_inf()) {
    for (i64 i = 0; i < columns; ++i) dlogits[i] = T{};
  } else if (dlogits) {
    const A factor = static_cast<A>(scale);
    sweep<Vector<A>::lanes>(
        columns, [&](i64 i, auto w) __attribute__((always_inline)) {
          store(dlogits + i, exponential(load(logits + i, w) - lse) * factor, w);
        });
    // The target's entry is written apart, in one rounding: (p − 1)·scale.
    const A p = scalar_exponential<A>(hit - lse);
    if (target >= 0) store(dlogits + target, Vec<A>{} + (p - A(1)) * factor, Part{1});
  }
  return target < 0 ? 0 : static_cast<double>(lse) - static_cast<double>(hit);
}

// ---- fp64 sums -------------------------------------------------------------------------------------------------------

template <bool square, class T>
double sum_fp64(const T* x, i64 n) {
  return sum_over<double>(
      n, [&](i64 i, auto w) __attribute__((always_inline)) {
        const VecD v = load_fp64(x + i, w);
        return square ? v * v : v;
      });
}

// ---- fp64 product ----------------------------------------------------------------------------------------------------

void product_fp64(double* c, i64 ldc, const double* a, i64 a_row, i64 a_column, const double* panel, i64 m, i64 n, i64 k) {
  for (i64 i = 0; i < m; ++i) {
    VecD s0{}, s1{}, s2{}, s3{};
    const double* row = a + i * a_row;
    for (i64 l = 0; l < k; ++l) {
      const double v = row[l * a_column];
      const double* b = panel + l * kPanel;
      s0 += load(b, Full{}) * v;
      s1 += load(b + 8, Full{}) * v;
      s2 += load(b + 16, Full{}) * v;
      s3 += load(b + 24, Full{}) * v;
    }
    double sums[kPanel];
    store(sums, s0, Full{});
    store(sums + 8, s1, Full{});
    store(sums + 16, s2, Full{});
    store(sums + 24, s3, Full{});
    for (i64 j = 0; j < n; ++j) c[i * ldc + j] = sums[j];
  }
}

// ---- the table -------------------------------------------------------------------------------------------------------

template <class T>
constexpr KernelsOf<T, Acc<T>> kernels_of() {
  return {norm_row<T>,
          norm_input_grad_row<T>,
          norm_weight_grad<T>,
          column_sums<T>,
          rotate<T>,
          gelu<T>,
          gelu_grad<T>,
          swiglu<T>,
          swiglu_grad<T>,
          geglu<T>,
          geglu_grad<T>,
          multiply<T>,
          soft_cap<T>,
          soft_cap_grad<T>,
          add<T>,
          scale<T>,
          dot<T>,
          axpy<T>,
          cross_entropy_row<T>,
          log_sum_exp_row<T>,
          cross_entropy_part_row<T>,
          sum_fp64<false, T>,
          sum_fp64<true, T>};
}

constexpr Kernels make_kernels(const char* name) {
  return {name,
          kernels_of<float>(),
          kernels_of<u16>(),
          kernels_of<double>(),
          kernels_of<Fp16>(),
          {softmax_row<float>, softmax_grad_row<float>, merge_log_sums<float>},
          {softmax_row<double>, softmax_grad_row<double>, merge_log_sums<double>},
          {{{convert<float, float, false>, convert<float, float, true>},
            {convert<float, u16, false>, convert<float, u16, true>},
            {convert<float, double, false>, convert<float, double, true>},
            {convert<float, Fp16, false>, convert<float, Fp16, true>}},
           {{convert<u16, float, false>, convert<u16, float, true>},
            {convert<u16, u16, false>, convert<u16, u16, true>},
            {convert<u16, double, false>, convert<u16, double, true>},
            {convert<u16, Fp16, false>, convert<u16, Fp16, true>}},
           {{convert<double, float, false>, convert<double, float, true>},
            {convert<double, u16, false>, convert<double, u16, true>},
            {convert<double, double, false>, convert<double, double, true>},
            {convert<double, Fp16, false>, convert<double, Fp16, true>}},
           {{convert<Fp16, float, false>, convert<Fp16, float, true>},
            {convert<Fp16, u16, false>, convert<Fp16, u16, true>},
            {convert<Fp16, double, false>, convert<Fp16, double, true>},
            {convert<Fp16, Fp16, false>, convert<Fp16, Fp16, true>}}},
          product_fp64};
}

}  // namespace
}  // namespace terrace::cpu
