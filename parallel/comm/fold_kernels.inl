// The source of every kernel table; each fold_<isa>.cpp includes it once. Everything has internal linkage. Lanes are
// independent, so the instruction set only decides how many elements run at once.

namespace terrace::comm::folding {
namespace {

using i64 = std::int64_t;
using u16 = std::uint16_t;
typedef float VecF __attribute__((vector_size(64)));
typedef double VecD __attribute__((vector_size(64)));
typedef std::uint32_t VecU __attribute__((vector_size(64)));
typedef std::uint16_t VecH __attribute__((vector_size(32)));

#define TERRACE_INLINE static inline __attribute__((always_inline))

template <class V, class T>
TERRACE_INLINE V load_raw(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
TERRACE_INLINE VecF load(const float* p) { return load_raw<VecF>(p); }
TERRACE_INLINE VecD load(const double* p) { return load_raw<VecD>(p); }
TERRACE_INLINE VecF load(const u16* p) {
  return reinterpret_cast<VecF>(__builtin_convertvector(load_raw<VecH>(p), VecU) << 16);
}
TERRACE_INLINE void store(float* p, VecF v) { __builtin_memcpy(p, &v, sizeof v); }
TERRACE_INLINE void store(double* p, VecD v) { __builtin_memcpy(p, &v, sizeof v); }
TERRACE_INLINE VecH narrowed(VecF v) {  // nearest even; a NaN stays a quiet NaN
  const VecU u = reinterpret_cast<VecU>(v);
  const VecU nearest = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const VecU rounded = (u & 0x7fffffffU) > 0x7f800000U ? ((u >> 16) | 0x40U) : nearest;
  return __builtin_convertvector(rounded, VecH);
}
TERRACE_INLINE void store(u16* p, VecF v) {
  const VecH h = narrowed(v);
  __builtin_memcpy(p, &h, sizeof h);
}

// The same stores past the cache; not with ThreadSanitizer, which does not see them.
#if defined(__AVX2__) && !defined(__SANITIZE_THREAD__)
typedef long long VecQ __attribute__((vector_size(32)));
#if __has_builtin(__builtin_nontemporal_store)  // Clang's
TERRACE_INLINE void stream_part(VecQ* p, VecQ v) { __builtin_nontemporal_store(v, p); }
#else
TERRACE_INLINE void stream_part(VecQ* p, VecQ v) { __builtin_ia32_movntdq256(p, v); }
#endif
template <class V>
TERRACE_INLINE void stream_raw(void* p, const V& v) {
  VecQ part[sizeof(V) / sizeof(VecQ)];
  __builtin_memcpy(part, &v, sizeof v);
  for (unsigned i = 0; i < sizeof(V) / sizeof(VecQ); ++i) stream_part(static_cast<VecQ*>(p) + i, part[i]);
}
TERRACE_INLINE void stream(float* p, VecF v) { stream_raw(p, v); }
TERRACE_INLINE void stream(double* p, VecD v) { stream_raw(p, v); }
TERRACE_INLINE void stream(u16* p, VecF v) { stream_raw(p, narrowed(v)); }
TERRACE_INLINE void end_stream() { __builtin_ia32_sfence(); }  // such stores are weakly ordered
#else
template <class T, class V>
TERRACE_INLINE void stream(T* p, V v) {
  store(p, v);
}
TERRACE_INLINE void end_stream() {}
#endif

template <bool kMax, class V>
TERRACE_INLINE V folded(V a, V b) {
  if constexpr (kMax) {
    return (a > b || a != a) ? a : b;  // lane by lane: b when it is larger, equal or not a number
  } else {
    return a + b;
  }
}

template <class T>
constexpr i64 kLanes = sizeof(T) == 8 ? 8 : 16;

// Folds kRows vectors of every source, `apart` elements apart, one source after the other. All vectors are read before any is
// written, so `to` may be a source.
template <int kRows, bool kMax, bool kOnto, bool kStream, class F, class T>
TERRACE_INLINE void tile(T* to, const F* const* from, int sources, i64 at, i64 apart) {
  decltype(load(to)) sum[kRows];
  for (int row = 0; row < kRows; ++row) sum[row] = kOnto ? load(to + at + row * apart) : load(from[0] + at + row * apart);
  for (int s = kOnto ? 0 : 1; s < sources; ++s) {
    const F* const source = from[s] + at;
    for (int row = 0; row < kRows; ++row) sum[row] = folded<kMax>(sum[row], load(source + row * apart));
  }
  for (int row = 0; row < kRows; ++row)
    if constexpr (kStream)
      stream(to + at + row * apart, sum[row]);
    else
      store(to + at + row * apart, sum[row]);
}

// Folds the elements that do not fill a vector, by padded vectors.
template <bool kMax, bool kOnto, class F, class T>
TERRACE_INLINE void rest(T* to, const F* const* from, int sources, i64 at, i64 count) {
  T padded_to[kLanes<F>] = {};
  F padded_from[kLanes<F>] = {};
  const F* const padded = padded_from;
  for (i64 i = 0; kOnto && i < count; ++i) padded_to[i] = to[at + i];
  auto sum = load(padded_to);
  for (int s = 0; s < sources; ++s) {
    for (i64 i = 0; i < count; ++i) padded_from[i] = from[s][at + i];
    const auto contribution = load(padded);
    sum = s == 0 && !kOnto ? contribution : folded<kMax>(sum, contribution);
  }
  store(padded_to, sum);
  for (i64 i = 0; i < count; ++i) to[at + i] = padded_to[i];
}

template <class F, class T, bool kMax, bool kOnto, bool kStream = false>
void fold(void* to_bytes, const void* const* from_bytes, int sources, i64 count) {
  constexpr i64 lanes = kLanes<F>;
  constexpr int kRows = 4;
  T* const to = static_cast<T*>(to_bytes);
  const F* const* const from = reinterpret_cast<const F* const*>(from_bytes);
  // Four stretches at once: a processor prefetches only within a page, so several stretches keep more loads in flight.
  const i64 stretch = count / (kRows * lanes) * lanes;
  for (i64 i = 0; i < stretch; i += lanes) tile<kRows, kMax, kOnto, kStream>(to, from, sources, i, stretch);
  i64 at = kRows * stretch;
  for (; at + lanes <= count; at += lanes) tile<1, kMax, kOnto, kStream>(to, from, sources, at, lanes);
  if (at < count) rest<kMax, kOnto>(to, from, sources, at, count - at);
  if constexpr (kStream) end_stream();
}

typedef std::int8_t VecC __attribute__((vector_size(16)));

// Folds blocks of a scale and 256 codes.
template <bool kOnto>
void fold_blocks(void* to_bytes, const void* const* from_bytes, int sources, i64 blocks) {
  constexpr i64 kElements = 256, kBytes = 260, lanes = kLanes<float>;
  for (i64 b = 0; b < blocks; ++b) {
    float* const to = static_cast<float*>(to_bytes) + b * kElements;
    for (i64 at = 0; at < kElements; at += lanes) {
      VecF sum = {};
      if (kOnto) sum = load(to + at);
      for (int s = 0; s < sources; ++s) {
        const char* const block = static_cast<const char*>(from_bytes[s]) + b * kBytes;
        float scale;
        __builtin_memcpy(&scale, block, sizeof scale);
        const VecF x = __builtin_convertvector(load_raw<VecC>(block + sizeof scale + at), VecF) * scale;
        sum = s == 0 && !kOnto ? x : sum + x;
      }
      store(to + at, sum);
    }
  }
}

constexpr Kernels make_kernels(const char* name) {
  return {
      name,
      {{{fold<float, float, false, false>, fold<float, float, false, true>},
        {fold<float, float, true, false>, fold<float, float, true, true>}},
       {{fold<double, double, false, false>, fold<double, double, false, true>},
        {fold<double, double, true, false>, fold<double, double, true, true>}},
       {{fold<u16, u16, false, false>, fold<u16, u16, false, true>}, {fold<u16, u16, true, false>, fold<u16, u16, true, true>}},
       {{fold<u16, float, false, false>, fold<u16, float, false, true>},
        {fold<u16, float, true, false>, fold<u16, float, true, true>}},
       {{fold<float, u16, false, false>, fold<float, u16, false, true>},
        {fold<float, u16, true, false>, fold<float, u16, true, true>}},
       {{fold_blocks<false>, fold_blocks<true>}, {nullptr, nullptr}}},
      {{fold<float, float, false, false, true>, fold<float, float, true, false, true>},
       {fold<double, double, false, false, true>, fold<double, double, true, false, true>},
       {fold<u16, u16, false, false, true>, fold<u16, u16, true, false, true>},
       {fold<u16, float, false, false, true>, fold<u16, float, true, false, true>},
       {fold<float, u16, false, false, true>, fold<float, u16, true, false, true>},
       {fold_blocks<false>, nullptr}}};
}

#undef TERRACE_INLINE

}  // namespace
}  // namespace terrace::comm::folding
