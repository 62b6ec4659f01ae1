// Numbers of 8 bits compared with the tables of the OFP8 specification, restated in fp64, at every code and every boundary of
// rounding; matrices of them, and their products.
#include <algorithm>
#include <bit>
#include <limits>

#include <terrace/core/math/float8.h>

#include <terrace/tests/math/math_fixture.h>

namespace terrace::test {
namespace {

using math::float8_code, math::float8_format, math::float8_value;

constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

// OFP8, tables 1 and 2.
struct Specified {
  int exponent_bits, mantissa_bits, bias;
  double greatest, least;
};
Specified specified(DType dtype) {
  return dtype == DType::e4m3 ? Specified{4, 3, 7, 448, 0x1p-9} : Specified{5, 2, 15, 57344, 0x1p-16};
}
double value_by_the_table(int code, DType dtype) {
  const auto s = specified(dtype);
  const int mantissa = code & ((1 << s.mantissa_bits) - 1), exponent = code >> s.mantissa_bits & ((1 << s.exponent_bits) - 1);
  const double sign = code & 0x80 ? -1 : 1;
  const bool last = exponent == (1 << s.exponent_bits) - 1;
  if (dtype == DType::e4m3 && last && mantissa == 7) return std::nan("");
  if (dtype == DType::e5m2 && last) return mantissa == 0 ? sign * HUGE_VAL : std::nan("");
  const double fraction = std::ldexp(mantissa, -s.mantissa_bits);
  return sign * (exponent == 0 ? std::ldexp(fraction, 1 - s.bias) : std::ldexp(1 + fraction, exponent - s.bias));
}
// The finite values from 0 on; the code of each is its position.
std::vector<double> magnitudes(DType dtype) {
  std::vector<double> all;
  for (int code = 0; code < 0x80 && std::isfinite(value_by_the_table(code, dtype)); ++code)
    all.push_back(value_by_the_table(code, dtype));
  return all;
}
int code_by_search(double x, DType dtype) {
  static const std::vector<double> of_formats[] = {magnitudes(DType::e4m3), magnitudes(DType::e5m2)};
  const auto& all = of_formats[dtype == DType::e4m3 ? 0 : 1];
  const double m = std::min(std::abs(x), all.back());
  const auto above = static_cast<std::size_t>(std::ranges::lower_bound(all, m) - all.begin());
  auto best = above;
  if (above > 0) {
    const double down = m - all[above - 1], up = all[above] - m;
    if (down < up || (down == up && above % 2 == 1)) best = above - 1;
  }
  return static_cast<int>(best) | (std::signbit(x) ? 0x80 : 0);
}

TEST(Float8, EveryCodeHasTheValueOfTheSpecification) {
  for (const auto dtype : kFormats) {
    const auto s = specified(dtype);
    for (int code = 0; code < 256; ++code) {
      const double want = value_by_the_table(code, dtype),
                   got = float8_value(static_cast<std::uint8_t>(code), float8_format(dtype));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(got)) << name_of(dtype) << " " << code;
        continue;
      }
      EXPECT_EQ(want, got) << name_of(dtype) << " " << code;
      EXPECT_EQ(std::signbit(want), std::signbit(got)) << name_of(dtype) << " " << code;
      if (std::isfinite(want)) {
        EXPECT_EQ(code, float8_code(static_cast<float>(got), float8_format(dtype))) << "there and back";
      }
    }
    EXPECT_EQ(s.greatest, magnitudes(dtype).back());
    EXPECT_EQ(s.least, magnitudes(dtype)[1]);
  }
}

// Halfway between two neighbours lies the even code; a float beside it goes to the nearer neighbour.
TEST(Float8, EveryBoundaryRoundsToNearestEven) {
  for (const auto dtype : kFormats) {
    const auto all = magnitudes(dtype);
    const auto f = float8_format(dtype);
    for (std::size_t i = 0; i + 1 < all.size(); ++i)
      for (const int sign : {0, 0x80}) {
        const auto half = static_cast<float>((all[i] + all[i + 1]) / 2);
        ASSERT_EQ(half, (all[i] + all[i + 1]) / 2) << "a float";
        const auto at = [&](float magnitude) { return float8_code(sign ? -magnitude : magnitude, f); };
        const auto low = static_cast<int>(i) | sign, high = static_cast<int>(i + 1) | sign;
        EXPECT_EQ(i % 2 == 0 ? low : high, at(half)) << name_of(dtype) << " " << half;
        EXPECT_EQ(low, at(std::nextafter(half, 0.0F))) << name_of(dtype) << " " << half;
        EXPECT_EQ(high, at(std::nextafter(half, HUGE_VALF))) << name_of(dtype) << " " << half;
      }
  }
}

TEST(Float8, WhatIsTooLargeSaturatesAndNaNStays) {
  for (const auto dtype : kFormats) {
    const auto f = float8_format(dtype);
    for (const float large : {static_cast<float>(specified(dtype).greatest) * 1.01F, 1e6F, std::numeric_limits<float>::max(),
                              std::numeric_limits<float>::infinity()}) {
      EXPECT_EQ(specified(dtype).greatest, float8_value(float8_code(large, f), f)) << large;
      EXPECT_EQ(-specified(dtype).greatest, float8_value(float8_code(-large, f), f)) << large;
    }
    for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0xff812345U, 0xffffffffU})
      EXPECT_TRUE(std::isnan(float8_value(float8_code(std::bit_cast<float>(nan), f), f))) << nan;
  }
}

// All floats with other low halves than zero lie beside one of these, or between the same two boundaries.
TEST(Float8, EveryFloatOfSixteenBitsGoesToTheNearest) {
  for (const auto dtype : kFormats)
    for (std::uint32_t high = 0; high < 0x10000; high += 3) {
      const auto x = std::bit_cast<float>(high << 16 | (high & 1));
      if (std::isnan(x)) continue;
      ASSERT_EQ(code_by_search(x, dtype), float8_code(x, float8_format(dtype))) << name_of(dtype) << " " << x;
    }
}

// The greatest power of two that saturates nothing, for every exponent of an fp32 number.
TEST(Float8, AScaleIsTheGreatestPowerOfTwo) {
  for (const auto dtype : kFormats) {
    const auto f = float8_format(dtype);
    const double greatest = specified(dtype).greatest;
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent)
      for (const std::uint32_t mantissa : {0U, 1U, 0x5fffffU, 0x600000U, 0x600001U, 0x7fffffU}) {
        const auto bits = exponent << 23 | mantissa;
        const double m = std::bit_cast<float>(bits);
        const auto s = math::float8_scale(bits, f);
        if (!std::isfinite(m) || m * 0x1p-63 > greatest) {
          EXPECT_TRUE(std::isnan(s.scale) && s.factor == 0) << m;
          EXPECT_EQ(0, float8_code(static_cast<float>(m), s, f));
          continue;
        }
        int e = 0;
        EXPECT_EQ(0.5, std::frexp(s.factor, &e));
        EXPECT_EQ(1, double{s.scale} * double{s.factor});
        EXPECT_LE(m * s.factor, greatest) << m;
        EXPECT_TRUE(s.factor == 0x1p63F || 2 * m * s.factor > greatest) << m;
        EXPECT_GE(s.scale * s.scale, std::numeric_limits<float>::min()) << "a product of two scales is a normal number";
      }
  }
}

class Float8Test : public MathTest {
 protected:
  struct Operand {
    Tensor codes, scale;
  };
  Operand quantised(DType dtype, const MatrixView& x, Transpose tx) {
    const bool turns = tx == Transpose::yes;
    Operand o{Tensor(dtype, {turns ? columns_of(x) : rows_of(x), math::float8_columns(turns ? rows_of(x) : columns_of(x))}),
              Tensor(DType::fp32, {1})};
    math.quantise(stream, turns ? TensorView{} : o.codes.view(), turns ? o.codes.view() : TensorView{}, o.scale, x);
    machine.sync();
    return o;
  }
};

TEST_F(Float8Test, AMatrixIsRoundedElementByElement) {
  for (const auto dtype : kFormats)
    for (const auto of : {DType::fp32, DType::bf16, DType::fp16})
      for (const auto& [rows, columns, gap] : {std::array<std::int64_t, 3>{1, 1, 0}, {5, 130, 0}, {200, 64, 3}, {67, 129, 0}})
        for (const auto tx : {Transpose::no, Transpose::yes}) {
          SCOPED_TRACE(testing::Message() << name_of(of) << " to " << name_of(dtype) << " " << rows << " x " << columns);
          auto x = random(of, {rows, columns + gap}, -3, 3);
          for (std::int64_t i = 0; i < x.size(); i += 7) x.set(i, x.get(i) * 0x1p-12);  // some lose bits
          for (std::int64_t r = 0; gap > 0 && r < rows; ++r)
            x.set(r * (columns + gap) + columns, std::numeric_limits<double>::quiet_NaN());
          const TensorView of_rows{x.view().data, of, {rows, columns}};
          const auto got = quantised(dtype, MatrixView(of_rows, columns + gap), tx);
          double greatest = 0;
          const auto element = [&](std::int64_t r, std::int64_t c) { return x.get(r * (columns + gap) + c); };
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < columns; ++c) greatest = std::max(greatest, std::abs(element(r, c)));
          const auto s = math::float8_scale(std::bit_cast<std::uint32_t>(static_cast<float>(greatest)), float8_format(dtype));
          EXPECT_EQ(s.scale, got.scale.get(0));
          const auto& shape = got.codes.shape();
          for (std::int64_t i = 0; i < shape[0]; ++i)
            for (std::int64_t j = 0; j < shape[1]; ++j) {
              const bool is = j < (tx == Transpose::yes ? rows : columns);
              const double x_of = !is ? 0 : tx == Transpose::yes ? element(j, i) : element(i, j);
              ASSERT_EQ(code_by_search(x_of * s.factor, dtype), static_cast<int>(got.codes.data()[i * shape[1] + j]))
                  << i << ", " << j;
            }
        }
}

TEST_F(Float8Test, BothOrientationsAtOnceAreThoseOfEachAlone) {
  for (const auto dtype : kFormats)
    for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {5, 130}, {200, 64}, {129, 257}}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows << " x " << columns);
      const auto x = random(DType::bf16, {rows, columns}, -3, 3);
      Tensor codes(dtype, {rows, math::float8_columns(columns)}), turned(dtype, {columns, math::float8_columns(rows)}),
          scale(DType::fp32, {1});
      math.quantise(stream, codes, turned, scale, x.view());
      machine.sync();
      const auto as_is = quantised(dtype, x.view(), Transpose::no), of_transpose = quantised(dtype, x.view(), Transpose::yes);
      EXPECT_EQ(codes.bits(), as_is.codes.bits());
      EXPECT_EQ(turned.bits(), of_transpose.codes.bits());
      EXPECT_EQ(scale.get(0), as_is.scale.get(0));
    }
}

TEST_F(Float8Test, AMatrixOfZerosHasZeros) {
  Tensor x(DType::bf16, {4, 4});
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, 0);
  const auto got = quantised(DType::e4m3, x.view(), Transpose::no);
  EXPECT_EQ(got.codes.values(), std::vector<double>(4 * 128));
  EXPECT_TRUE(std::isfinite(got.scale.get(0)));
}

TEST_F(Float8Test, ProductsAreThoseOfTheRoundedOperands) {
  for (const auto& [of_a, of_b] : {std::pair{DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}})
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{1, 16, 1}, {67, 48, 200}, {16, 32, 1100}, {270, 208, 64}})
      for (const auto to : {DType::bf16, DType::fp32})
        for (int variant = 0; variant < 4; ++variant) {
          SCOPED_TRACE(testing::Message() << name_of(of_a) << " " << name_of(of_b) << " " << m << " x " << n << " x " << k
                                          << " to " << name_of(to) << ", variant " << variant);
          const bool biased = variant & 1, adds = variant & 2;
          const auto x = random(DType::bf16, {m, k}), w = random(DType::bf16, {k, n}, -0.01, 0.01),
                     bias = random(DType::bf16, {n});
          const auto a = quantised(of_a, x.view(), Transpose::no), b = quantised(of_b, w.view(), Transpose::yes);
          auto c = random(to, {m, n});
          std::vector<double> want(static_cast<std::size_t>(m * n));
          const auto left = a.codes.values(), right = b.codes.values(), old = c.values();
          const auto columns = static_cast<std::size_t>(math::float8_columns(k));
          const double scale = a.scale.get(0) * b.scale.get(0);
          for (std::size_t i = 0; i < want.size(); ++i) {
            const auto row = i / static_cast<std::size_t>(n), column = i % static_cast<std::size_t>(n);
            for (std::size_t l = 0; l < static_cast<std::size_t>(k); ++l)
              want[i] += scale * left[row * columns + l] * right[column * columns + l];
            want[i] += (biased ? bias.get(static_cast<std::int64_t>(column)) : 0) + (adds ? old[i] : 0);
          }
          math.matmul_float8(stream, c.view(), a.codes, b.codes, a.scale, b.scale, biased ? bias.view() : TensorView{},
                             adds ? Accumulate::yes : Accumulate::no);
          machine.sync();
          expect_near(c, want, tolerance(to), "product");
          if (HasFatalFailure()) return;
        }
}

// A run that skips steps which are not finite, or stops at them, must see them.
TEST_F(Float8Test, AnElementThatIsNotFiniteMakesAllResultsNaN) {
  for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan(""), 0x1p100}) {
    auto x = random(DType::bf16, {20, 40});
    x.set(333, bad);
    const auto w = random(DType::bf16, {16, 40});
    const auto a = quantised(DType::e5m2, x.view(), Transpose::no), b = quantised(DType::e4m3, w.view(), Transpose::no);
    Tensor c(DType::fp32, {20, 16});
    for (std::int64_t i = 0; i < c.size(); ++i) c.set(i, 1);
    math.matmul_float8(stream, c.view(), a.codes, b.codes, a.scale, b.scale);
    machine.sync();
    for (const double y : c.values()) ASSERT_TRUE(std::isnan(y)) << bad;
  }
}

TEST_F(Float8Test, OperandsThatDoNotMatchAreRefused) {
  const auto x = random(DType::bf16, {4, 130}), wide = random(DType::fp64, {4, 130});
  Tensor codes(DType::e4m3, {4, 256}), narrow(DType::e4m3, {4, 144}), scale(DType::fp32, {1});
  const Tensor turned(DType::e5m2, {130, 128});
  EXPECT_THROW(math.quantise(stream, narrow, {}, scale, x.view()), std::logic_error);
  EXPECT_THROW(math.quantise(stream, {}, codes, scale, x.view()), std::logic_error);
  EXPECT_THROW(math.quantise(stream, {}, {}, scale, x.view()), std::logic_error);
  EXPECT_THROW(math.quantise(stream, codes, turned, scale, x.view()), std::logic_error) << "two formats";
  EXPECT_THROW(math.quantise(stream, codes, {}, scale, wide.view()), std::logic_error);
  EXPECT_THROW(math.quantise(stream, x, {}, scale, x.view()), std::logic_error);
  Tensor c(DType::fp32, {4, 4}), of_half(DType::fp16, {4, 4});
  EXPECT_THROW(math.matmul_float8(stream, c.view(), codes, narrow, scale, scale), std::logic_error);
  EXPECT_THROW(math.matmul_float8(stream, of_half.view(), codes, codes, scale, scale), std::logic_error);
  EXPECT_THROW(math.matmul(stream, c.view(), codes.view(), Transpose::no, codes.view(), Transpose::yes), std::logic_error);
}

}  // namespace
}  // namespace terrace::test
