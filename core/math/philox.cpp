#include <terrace/core/math/philox.h>

#include <bit>
#include <cmath>
#include <cstring>

#include <xxhash.h>

#include <terrace/core/base/wide_vectors.h>

// One body, compiled for each ISA. Every step is an IEEE operation that is rounded on its own (no contraction, no libm), so the
// ISA affects only how many lanes run at once.
#define TERRACE_INLINE inline __attribute__((always_inline))

namespace terrace::math {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

TERRACE_INLINE std::uint32_t high(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>((std::uint64_t{a} * b) >> 32);
}

TERRACE_INLINE void philox_round(std::uint32_t& x0, std::uint32_t& x1, std::uint32_t& x2, std::uint32_t& x3, std::uint32_t k0,
                                 std::uint32_t k1) {
  const std::uint32_t high0 = high(kMultiplier0, x0), low0 = kMultiplier0 * x0;
  const std::uint32_t high1 = high(kMultiplier1, x2), low1 = kMultiplier1 * x2;
  x0 = high1 ^ x1 ^ k0;
  x1 = low1;
  x2 = high0 ^ x3 ^ k1;
  x3 = low0;
}

PhiloxBlock block_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  return philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), static_cast<std::uint32_t>(stream),
                 static_cast<std::uint32_t>(stream >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

TERRACE_INLINE std::uint64_t join(std::uint32_t low, std::uint32_t upper) { return std::uint64_t{upper} << 32 | low; }

TERRACE_INLINE double from_bits(std::uint64_t bits) { return std::bit_cast<double>(bits); }
constexpr std::uint64_t kOneBits = 0x3FF0000000000000;  // 1.0

// Natural logarithm of a normal, positive x <= 1 (fdlibm's e_log: the reduction to [sqrt(1/2), sqrt(2)) and its minimax
// coefficients), below one unit in the last place.
TERRACE_INLINE double log_of(double x) {
  constexpr std::uint64_t kSqrtHalfBits = 0x3FE6A09E667F3BCD;
  // The exponent relative to sqrt(1/2). Adding 1024 makes it positive, so that a logical shift can be used. It becomes a double
  // by placing it in the low bits of 2^52.
  const std::uint64_t biased = (std::bit_cast<std::uint64_t>(x) - kSqrtHalfBits + (std::uint64_t{1024} << 52)) >> 52;
  const double k = from_bits(0x4330000000000000 | biased) - (4503599627370496.0 + 1024.0);
  const double m = from_bits(std::bit_cast<std::uint64_t>(x) - ((biased - 1024) << 52));
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double w = z * z;
  const double even = w * (3.999999999940941908e-01 + w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  const double odd = z * (6.666666666666735130e-01 +
                          w * (2.857142874366239149e-01 + w * (1.818357216161805012e-01 + w * 1.479819860511658591e-01)));
  const double half_square = 0.5 * f * f;
  return k * 6.93147180369123816490e-01 -
         ((half_square - (s * (half_square + (even + odd)) + k * 1.90821492927058770002e-10)) - f);
}

struct NormalPair {
  double first, second;
};

// Box-Muller from 52 + 54 random bits. The angle is a quadrant and a fraction in [-1/2, 1/2) of one, so its reduction is
// exact; sine and cosine on [-pi/4, pi/4] are fdlibm's polynomials.
TERRACE_INLINE NormalPair box_muller(std::uint64_t radius_bits, std::uint64_t angle_bits) {
  const double u = 2.0 - from_bits(kOneBits | radius_bits >> 12);  // (0, 1]
  const double radius = std::sqrt(-2.0 * log_of(u));

  const std::uint64_t quadrant = angle_bits >> 62;
  const double fraction = from_bits(kOneBits | (angle_bits << 2) >> 12) - 1.5;
  const double a = fraction * 1.57079632679489661923;
  const double z = a * a;
  const double sine =
      a +
      a * z *
          (-1.66666666666666324348e-01 +
           z * (8.33333333332248946124e-03 +
                z * (-1.98412698298579493134e-04 +
                     z * (2.75573137070700676789e-06 + z * (-2.50507602534068634195e-08 + z * 1.58969099521155010221e-10)))));
  const double cosine =
      1.0 -
      (0.5 * z -
       z * z *
           (4.16666666666666019037e-02 +
            z * (-1.38888888888741095749e-03 +
                 z * (2.48015872894767294178e-05 + z * (-2.75573143513906633035e-07 +
                                                        z * (2.08757232129817482790e-09 + z * -1.13596475577881948265e-11))))));

  // In odd quadrants, sine and cosine are swapped; the signs follow the quadrant.
  const std::uint64_t swap = 0 - (quadrant & 1);
  const auto s = std::bit_cast<std::uint64_t>(sine), c = std::bit_cast<std::uint64_t>(cosine);
  const std::uint64_t cos_sign = (quadrant + 1) >> 1 << 63, sin_sign = quadrant >> 1 << 63;
  return {radius * from_bits(((c & ~swap) | (s & swap)) ^ cos_sign), radius * from_bits(((s & ~swap) | (c & swap)) ^ sin_sign)};
}

NormalPair normal_pair(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  const auto x = block_at(seed, stream, block);
  return box_muller(join(x[0], x[1]), join(x[2], x[3]));
}

constexpr std::size_t kBatch = 256;  // blocks in flight: all arrays of a batch stay in the first-level cache

// The 2 * kBatch values of blocks first .. first + kBatch - 1.
TERRACE_INLINE void batch(float* out, std::uint64_t seed, std::uint64_t stream, std::uint64_t first, double std) {
  alignas(64) std::uint32_t x0[kBatch], x1[kBatch], x2[kBatch], x3[kBatch];
  alignas(64) std::uint64_t radius_bits[kBatch], angle_bits[kBatch];
  for (std::size_t i = 0; i < kBatch; ++i) {
    const std::uint64_t block = first + i;
    x0[i] = static_cast<std::uint32_t>(block);
    x1[i] = static_cast<std::uint32_t>(block >> 32);
  }
  for (std::size_t i = 0; i < kBatch; ++i) {
    std::uint32_t a = x0[i], b = x1[i], c = static_cast<std::uint32_t>(stream), d = static_cast<std::uint32_t>(stream >> 32);
    std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kRounds; ++round) {
      philox_round(a, b, c, d, k0, k1);
      k0 += kWeyl0;
      k1 += kWeyl1;
    }
    x0[i] = a;
    x1[i] = b;
    x2[i] = c;
    x3[i] = d;
  }
  for (std::size_t i = 0; i < kBatch; ++i) {
    radius_bits[i] = join(x0[i], x1[i]);
    angle_bits[i] = join(x2[i], x3[i]);
  }
  for (std::size_t i = 0; i < kBatch; ++i) {
    const auto pair = box_muller(radius_bits[i], angle_bits[i]);
    out[2 * i] = static_cast<float>(std * pair.first);
    out[2 * i + 1] = static_cast<float>(std * pair.second);
  }
}

TERRACE_INLINE void batches_body(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint64_t first,
                                 double std) {
  for (std::int64_t n = 0; n < count; ++n) {
    batch(out + static_cast<std::size_t>(n) * 2 * kBatch, seed, stream, first + static_cast<std::uint64_t>(n) * kBatch, std);
  }
}

using Batches = void (*)(float*, std::int64_t, std::uint64_t, std::uint64_t, std::uint64_t, double);

void batches_baseline(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint64_t first,
                      double std) {
  batches_body(out, count, seed, stream, first, std);
}

#if defined(__x86_64__)

__attribute__((target("avx2"))) void batches_avx2(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream,
                                                  std::uint64_t first, double std) {
  batches_body(out, count, seed, stream, first, std);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl" TERRACE_WIDE_VECTORS))) void batches_avx512(
    float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint64_t first, double std) {
  batches_body(out, count, seed, stream, first, std);
}

Batches choose_batches() {
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return batches_avx512;
  }
  return __builtin_cpu_supports("avx2") ? batches_avx2 : batches_baseline;
}

#else

Batches choose_batches() { return batches_baseline; }

#endif

}  // namespace

PhiloxBlock philox(PhiloxBlock x, std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    philox_round(x[0], x[1], x[2], x[3], key[0], key[1]);
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return x;
}

std::uint32_t random_u32(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return block_at(seed, stream, index / 4)[index % 4];
}

double random_uniform(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto x = block_at(seed, stream, index / 2);
  const auto lane = index % 2 * 2;
  return static_cast<double>(join(x[lane], x[lane + 1]) >> 11) * 0x1p-53;
}

double random_normal(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto pair = normal_pair(seed, stream, index / 2);
  return index % 2 == 0 ? pair.first : pair.second;
}

// Lemire's multiplication with rejection ("Fast random integer generation in an interval", 2019): no bias. An attempt
// after the first takes its bits from another stream.
std::uint64_t random_below(std::uint64_t seed, std::uint64_t stream, std::uint64_t index, std::uint64_t bound) {
  __extension__ using uint128 = unsigned __int128;
  if (bound == 0) return 0;
  const std::uint64_t biased_below = (0 - bound) % bound;
  for (;; stream += 0x9E3779B97F4A7C15) {
    const auto x = block_at(seed, stream, index);
    for (const std::uint64_t draw : {join(x[0], x[1]), join(x[2], x[3])}) {
      const auto product = static_cast<uint128>(draw) * bound;
      if (static_cast<std::uint64_t>(product) >= biased_below) return static_cast<std::uint64_t>(product >> 64);
    }
  }
}

void fill_normal(float* out, std::int64_t count, std::uint64_t seed, std::uint64_t stream, std::uint64_t first_index,
                 double std) {
  static const Batches batches = choose_batches();
  const auto single = [&](std::int64_t i) {
    out[i] = static_cast<float>(std * random_normal(seed, stream, first_index + static_cast<std::uint64_t>(i)));
  };
  std::int64_t i = 0;
  if (count > 0 && first_index % 2 == 1) single(i++);  // a batch begins with a whole block
  const std::int64_t whole = (count - i) / static_cast<std::int64_t>(2 * kBatch);
  batches(out + i, whole, seed, stream, (first_index + static_cast<std::uint64_t>(i)) / 2, std);
  for (i += whole * static_cast<std::int64_t>(2 * kBatch); i < count; ++i) single(i);
}

std::uint64_t stream_of(const char* name) { return XXH64(name, std::strlen(name), 0); }

}  // namespace terrace::math
