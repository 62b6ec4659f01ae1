#include <terrace/core/dtype.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <terrace/core/error.h>

namespace terrace {

TEST(DType, NamesParseBack) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64, DType::i32}) EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  for (const char* text : {"", "float", "FP32", "fp16"}) {
    try {
      parse_dtype(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
    }
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

// The oracle: between two neighbouring values, the nearer one; in the exact middle the one with an even last bit.
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

}  // namespace terrace
