#include <terrace/core/math/philox.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace terrace {
namespace {

constexpr std::uint64_t kSeed = 20240607, kStream = 0x0123456789ABCDEF;

// The two 64-bit words from which the normals 2k and 2k + 1 are computed.
std::array<std::uint64_t, 2> words_of(std::uint64_t block) {
  const auto x = math::philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                               static_cast<std::uint32_t>(kStream), static_cast<std::uint32_t>(kStream >> 32)},
                              {static_cast<std::uint32_t>(kSeed), static_cast<std::uint32_t>(kSeed >> 32)});
  return {std::uint64_t{x[1]} << 32 | x[0], std::uint64_t{x[3]} << 32 | x[2]};
}

}  // namespace

// From the known-answer file of Random123, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(math::philox({0, 0, 0, 0}, {0, 0}), (math::PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kAll = 0xffffffff;
  EXPECT_EQ(math::philox({kAll, kAll, kAll, kAll}, {kAll, kAll}),
            (math::PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(math::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (math::PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, U32ReadsTheBlocksInOrder) {
  for (std::uint64_t i = 0; i < 64; ++i) {
    const auto words = words_of(i / 4);
    EXPECT_EQ(math::random_u32(kSeed, kStream, i), static_cast<std::uint32_t>(words[i % 4 / 2] >> (i % 2 * 32)));
  }
}

TEST(Philox, UniformHasItsMoments) {
  constexpr int kCount = 1 << 20;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double u = math::random_uniform(kSeed, kStream, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 5 * std::sqrt(1.0 / 12 / kCount));
  EXPECT_NEAR(squares / kCount, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kCount));
}

// The oracle: Box-Muller with libm in long double from the same bits.
TEST(Philox, NormalAgreesWithLibm) {
  for (std::uint64_t block = 0; block < 100'000; ++block) {
    const auto [r, t] = words_of(block);
    const long double u = 1.0L - static_cast<long double>(r >> 12) * 0x1p-52L;
    const long double radius = std::sqrt(-2 * std::log(u));
    const long double turns = static_cast<long double>(t >> 62) + static_cast<long double>((t << 2) >> 12) * 0x1p-52L - 0.5L;
    const long double angle = turns * 1.5707963267948966192313L;
    ASSERT_NEAR(math::random_normal(kSeed, kStream, 2 * block), static_cast<double>(radius * std::cos(angle)), 1e-14)
        << "block " << block;
    ASSERT_NEAR(math::random_normal(kSeed, kStream, 2 * block + 1), static_cast<double>(radius * std::sin(angle)), 1e-14)
        << "block " << block;
  }
}

TEST(Philox, NormalHasItsMoments) {
  constexpr int kCount = 1 << 22;
  std::vector<float> values(kCount);
  math::fill_normal(values.data(), kCount, kSeed, kStream, 0, 1.0);
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, neighbours = 0, beyond2 = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = values[static_cast<std::size_t>(i)];
    m1 += x;
    m2 += x * x;
    m3 += x * x * x;
    m4 += x * x * x * x;
    beyond2 += std::abs(x) > 2 ? 1 : 0;
    if (i) neighbours += x * values[static_cast<std::size_t>(i - 1)];
  }
  // Five standard errors: the variances of x, x^2, x^3, x^4 are 1, 2, 15, 96.
  const double root = std::sqrt(static_cast<double>(kCount));
  EXPECT_NEAR(m1 / kCount, 0, 5 / root);
  EXPECT_NEAR(m2 / kCount, 1, 5 * std::sqrt(2.0) / root);
  EXPECT_NEAR(m3 / kCount, 0, 5 * std::sqrt(15.0) / root);
  EXPECT_NEAR(m4 / kCount, 3, 5 * std::sqrt(96.0) / root);
  EXPECT_NEAR(neighbours / kCount, 0, 5 / root);
  const double tail = std::erfc(std::sqrt(2.0));
  EXPECT_NEAR(beyond2 / kCount, tail, 5 * std::sqrt(tail) / root);
}

// A fixed hash detects any change of bits between versions, compilers and machines: all samples depend on them.
TEST(Philox, NormalKeepsItsBits) {
  std::uint64_t hash = 0;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    hash = (hash ^ std::bit_cast<std::uint64_t>(math::random_normal(1, 2, i))) * 0x100000001B3;
  }
  EXPECT_EQ(hash, 14747445636750051631U);
}

TEST(Philox, FillIsNormalOfEachIndex) {
  constexpr std::uint64_t kFar = (1ULL << 33) - 700;  // the low half of the block counter wraps inside
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{510}, std::uint64_t{513}, kFar, kFar + 1}) {
    for (const std::int64_t count : {0, 1, 2, 3, 511, 512, 513, 1024, 1999}) {
      std::vector<float> out(static_cast<std::size_t>(count) + 1, 77.0F);
      math::fill_normal(out.data(), count, kSeed, kStream, first, 0.02);
      for (std::int64_t i = 0; i < count; ++i) {
        const auto want = static_cast<float>(0.02 * math::random_normal(kSeed, kStream, first + static_cast<std::uint64_t>(i)));
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[static_cast<std::size_t>(i)]), std::bit_cast<std::uint32_t>(want))
            << "first " << first << " count " << count << " i " << i;
      }
      ASSERT_EQ(out.back(), 77.0F) << "written past the end";
    }
  }
}

TEST(Philox, BelowIsInRangeAndEven) {
  EXPECT_EQ(math::random_below(kSeed, kStream, 3, 1), 0U);
  constexpr std::uint64_t kBound = 7;
  constexpr int kCount = 70'000;
  std::array<int, kBound> seen{};
  for (int i = 0; i < kCount; ++i) {
    const auto x = math::random_below(kSeed, kStream, static_cast<std::uint64_t>(i), kBound);
    ASSERT_LT(x, kBound);
    ++seen[x];
  }
  double chi2 = 0;
  for (const int n : seen) chi2 += (n - 10'000.0) * (n - 10'000.0) / 10'000.0;
  EXPECT_LT(chi2, 30);                 // 6 degrees of freedom: p = 4e-5
  const auto huge = (1ULL << 63) + 1;  // rejects almost every second draw
  for (std::uint64_t i = 0; i < 1000; ++i) ASSERT_LT(math::random_below(kSeed, kStream, i, huge), huge);
}

TEST(Philox, StreamsOfNamesDiffer) {
  EXPECT_EQ(math::stream_of(""), 0xEF46DB3751D8E999ULL);  // XXH64 of nothing, seed 0
  EXPECT_NE(math::stream_of("layers.0.weight"), math::stream_of("layers.1.weight"));
}

}  // namespace terrace
