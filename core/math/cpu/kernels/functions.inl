// exp, tanh and log of vectors; the bits are the same for every instruction set (fp64 calls the C library).
// Internal to core/math/cpu/kernels.inl.

namespace terrace::cpu {
namespace {

// exp as 2^n · p(r), |r| ≤ ln2/2 (Cephes' polynomial). Results below 2^-126 are zero. Arguments above 88 give exp(88), which is
// finite, so that e/(1 + e) needs no special case. NaN stays NaN.
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
// Calls the C library, lane by lane.
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

// 1 − erf, which does not cancel.
template <class A>
TERRACE_INLINE Vec<A> complementary_error(Vec<A> x) {
  A lane[Vector<A>::lanes];
  store(lane, x, Full{});
  for (A& v : lane) v = static_cast<A>(__builtin_erfc(static_cast<double>(v)));
  return load(lane, Full{});
}

}  // namespace
}  // namespace terrace::cpu
