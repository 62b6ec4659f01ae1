#include <terrace/core/math/dtype.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <terrace/core/base/error.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {

TEST(DType, NamesParseBack) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64, DType::fp16, DType::i32})
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  for (const char* text : {"", "float", "FP32", "f16"}) {
    EXPECT_EQ(ErrorKind::refused, test::thrown_by([&] { parse_dtype(text); }).kind()) << text;
  }
}

TEST(Bf16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    bf16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bf16(wide)))) << bits;
    } else {
      EXPECT_EQ(bf16(wide).bits, bits);
    }
  }
}

// The oracle: of two adjacent values the nearer one; exactly in the middle, the one whose last bit is even.
TEST(Bf16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7F7F; ++bits) {
    bf16 low;
    low.bits = static_cast<std::uint16_t>(bits);
    const auto at = [&](std::uint32_t offset) { return bf16(std::bit_cast<float>((bits << 16) + offset)).bits; };
    ASSERT_EQ(at(0x7FFF), bits);
    ASSERT_EQ(at(0x8000), bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(at(0x8001), bits + 1);
  }
}

TEST(Bf16, KeepsInfinityAndOverflowsToIt) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(static_cast<float>(bf16(kInfinity)), kInfinity);
  EXPECT_EQ(static_cast<float>(bf16(-kInfinity)), -kInfinity);
  EXPECT_EQ(static_cast<float>(bf16(std::numeric_limits<float>::max())), kInfinity);
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(std::bit_cast<float>(0x7F800001U)))));  // a NaN whose payload is cut off
}

TEST(Fp16, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    fp16 value;
    value.bits = static_cast<std::uint16_t>(bits);
    const auto wide = static_cast<float>(value);
    const int exponent = static_cast<int>(bits >> 10 & 0x1fU);
    const double fraction = (bits & 0x3ffU) / 1024.0;
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(wide), fraction != 0) << bits;
      ASSERT_EQ(std::isinf(wide), fraction == 0) << bits;
    } else {
      ASSERT_EQ(wide, bits < 0x8000 ? magnitude : -magnitude) << bits;
    }
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    if (std::isnan(wide)) {
      ASSERT_TRUE(std::isnan(static_cast<float>(fp16(wide)))) << bits;
    } else {
      ASSERT_EQ(fp16(wide).bits, bits);
    }
  }
}

// Like bf16's oracle: the middle between adjacent values has one more digit, which fits into fp32.
TEST(Fp16, RoundsToNearestEven) {
  const auto value = [](std::uint32_t bits) {
    fp16 h;
    h.bits = static_cast<std::uint16_t>(bits);
    return bits == 0x7c00 ? 65536.0F : static_cast<float>(h);  // the value after the greatest one, if there were one
  };
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const float middle = (value(bits) + value(bits + 1)) / 2;
    ASSERT_EQ(fp16(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(fp16(middle).bits, bits % 2 == 0 ? bits : bits + 1);
    ASSERT_EQ(fp16(std::nextafter(middle, 1e9F)).bits, bits + 1);
    ASSERT_EQ(fp16(-middle).bits, 0x8000 | fp16(middle).bits);
  }
  for (const float small : {std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(), 1e-30F})
    EXPECT_EQ(fp16(small).bits, 0);
  for (const float large : {65520.0F, 1e6F, std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()})
    EXPECT_EQ(fp16(-large).bits, 0xfc00);
  EXPECT_TRUE(std::isnan(static_cast<float>(fp16(std::bit_cast<float>(0x7F800001U)))));  // a NaN whose payload is cut off
}

}  // namespace terrace
