// The source of every kernel table; each adamw_<isa>.cpp includes it once. Everything has internal linkage. The loops are
// straight, so that the compiler vectorises them; each operation is an IEEE operation rounded on its own (square root and
// division too), so the instruction set decides how many lanes run at once and nothing else.

namespace terrace::adamw {
namespace {

#define TERRACE_INLINE static inline __attribute__((always_inline))

TERRACE_INLINE float widened(float g) { return g; }
TERRACE_INLINE double widened(double g) { return g; }
TERRACE_INLINE float widened(std::uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}
TERRACE_INLINE std::uint16_t rounded_to_bf16(float value) {  // nearest even; a NaN stays a quiet NaN
  const auto u = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t nearest = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  return static_cast<std::uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? ((u >> 16) | 0x40U) : nearest);
}
TERRACE_INLINE float root(float x) { return __builtin_sqrtf(x); }
TERRACE_INLINE double root(double x) { return __builtin_sqrt(x); }

// docs/optimizers.md numbers these lines; operations happen in the order and with the grouping written here.
template <bool kFirst, bool kCopy, class W, class G>
TERRACE_INLINE void loop(const Elements<W, G>& e, const Factors<W>& factors) {
  W* __restrict weight = e.weight;
  std::uint16_t* __restrict compute = e.compute;
  const G* __restrict gradient = e.gradient;
  W* __restrict first_moment = e.first_moment;
  W* __restrict second_moment = e.second_moment;
  const Factors<W> f = factors;
  const std::int64_t count = e.count;
  for (std::int64_t i = 0; i < count; ++i) {
    const W g = widened(gradient[i]) * f.gradient_scale;                              // 1
    W p = weight[i] * f.decay;                                                        // 2
    const W m_old = kFirst ? W{0} : first_moment[i];
    const W v_old = kFirst ? W{0} : second_moment[i];
    const W m = m_old + f.one_minus_beta1 * (g - m_old);                              // 3
    const W v = f.beta2 * v_old + (f.one_minus_beta2 * g) * g;                        // 4
    const W denominator = root(v) * f.inverse_root + f.eps;                           // 5
    p = p - (f.step_size * m) / denominator;                                          // 6
    weight[i] = p;
    first_moment[i] = m;
    second_moment[i] = v;
    if constexpr (kCopy) compute[i] = rounded_to_bf16(static_cast<float>(p));         // 7
  }
}

template <class W, class G>
void update(const Elements<W, G>& e, const Factors<W>& f) {
  if (e.compute == nullptr) {
    e.first ? loop<true, false>(e, f) : loop<false, false>(e, f);
  } else {
    e.first ? loop<true, true>(e, f) : loop<false, true>(e, f);
  }
}

constexpr Kernels make_kernels(const char* name) {
  return {name, update<float, float>, update<float, std::uint16_t>, update<double, double>};
}

#undef TERRACE_INLINE

}  // namespace
}  // namespace terrace::adamw
