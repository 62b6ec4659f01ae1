// The portable fused multiply-add compared with the C library's, bit by bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <terrace/optimizers/loops/fused_lanes.h>
#include <terrace/optimizers/loops/simd.h>

namespace terrace {
namespace {

using L = rules::Simd<4>;

void expect_fused(float a, float b, float c) {
  const L x{rules::fused_in_fp64(L::all(a).numbers, L::all(b).numbers, L::all(c).numbers)};
  const float expected = std::fma(a, b, c);
  for (int lane = 0; lane < 4; ++lane) {
    const float sum = x.numbers[lane];
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(sum)) << a << " * " << b << " + " << c;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(sum), std::bit_cast<std::uint32_t>(expected))
          << std::hexfloat << a << " * " << b << " + " << c << ": " << sum << ", not " << expected;
    }
  }
}

TEST(FusedLanes, OfWhatIsSpecial) {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> special{0.0F,
                                   -0.0F,
                                   1.0F,
                                   -1.0F,
                                   Limits::denorm_min(),
                                   -Limits::denorm_min(),
                                   Limits::min(),
                                   -Limits::min(),
                                   Limits::max(),
                                   -Limits::max(),
                                   Limits::infinity(),
                                   -Limits::infinity(),
                                   Limits::quiet_NaN(),
                                   1 + Limits::epsilon(),
                                   1 - Limits::epsilon() / 2,
                                   0x1.fffffep-64F,
                                   0x1p-75F};
  for (const float a : special)
    for (const float b : special)
      for (const float c : special) expect_fused(a, b, c);
}

// Sums that cancel, that are almost halfway between two numbers, and that are subnormal.
TEST(FusedLanes, OfRandomNumbersNearTies) {
  constexpr std::uint32_t kSeed = 20261123;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const auto number = [&](int least, int most) {
    const int exponent = std::uniform_int_distribution(least, most)(random);
    const std::uint32_t cut = ~0U << std::uniform_int_distribution(0, 23)(random);
    const auto mantissa = (static_cast<std::uint32_t>(random()) & cut & 0x7fffffU) | 0x3f800000U;
    return std::ldexp(std::bit_cast<float>(mantissa), exponent) * (random() % 2 == 0 ? 1.0F : -1.0F);
  };
  for (int round = 0; round < 400'000; ++round) {
    const float a = number(-20, 20), b = number(-20, 20);
    expect_fused(a, b, number(-60, 60));
    expect_fused(a, b, -a * b + number(-70, 0));                               // about the rounding error of the product
    expect_fused(std::ldexp(a, -60), std::ldexp(b, -60), number(-149, -120));  // subnormal
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace terrace
