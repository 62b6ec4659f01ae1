// 8-bit codes belong to the nearest value, at every boundary between two codes and on every instruction set.
#include <terrace/optimizers/formats/dynamic8.h>

#include <cstdlib>

#include <gtest/gtest.h>

#include <terrace/tests/optimizers/test_chunk.h>
#include <terrace/tests/support/one_in.h>

namespace terrace::test {
namespace {

using rules::dynamic8::Sign;
constexpr std::size_t kBlock = rules::dynamic8::kBlockElements;

class Dynamic8 : public testing::TestWithParam<std::tuple<rules::Isa, Sign>> {
 protected:
  void SetUp() override {
    if (!rules::runs(isa())) GTEST_SKIP() << "this processor does not run " << rules::name_of(isa());
  }
  static rules::Isa isa() { return std::get<0>(GetParam()); }
  static Sign sign() { return std::get<1>(GetParam()); }
  const std::vector<double> map_ = dynamic_map(sign() == Sign::both);

  // Encodes blocks whose first element is `scale`, so that this is the block's scale, followed by the values.
  void expect_nearest(const std::vector<float>& values, float scale) const {
    for (std::size_t at = 0; at < values.size(); at += kBlock - 1) {
      float block[kBlock] = {scale}, decoded[kBlock], stored_scale = 0;
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), std::min(kBlock - 1, values.size() - at), block + 1);
      std::uint8_t codes[kBlock];
      rules::dynamic8::encode(isa(), sign(), codes, &stored_scale, block, 1);
      ASSERT_EQ(stored_scale, std::max(scale, std::numeric_limits<float>::min()));
      rules::dynamic8::decode(isa(), sign(), decoded, codes, &stored_scale, 1);
      for (std::size_t i = 0; i < kBlock; ++i) {
        ASSERT_EQ(codes[i], nearest_code(map_, block[i], stored_scale))
            << std::hexfloat << block[i] << " in a block of scale " << scale;
        ASSERT_EQ(decoded[i], static_cast<float>(map_[codes[i]]) * stored_scale);
      }
    }
  }
};

TEST_P(Dynamic8, EveryBoundaryIsWhereItShouldBe) {
  std::vector<float> values{0, 1, std::numeric_limits<float>::denorm_min()};
  for (std::size_t c = 0; c + 1 < map_.size(); ++c) {
    auto value = static_cast<float>((map_[c] + map_[c + 1]) / 2);
    for (int i = 0; i < 4; ++i) value = std::nextafter(value, -1.0F);
    for (int i = 0; i < 9; ++i, value = std::nextafter(value, 1.0F))
      if (sign() == Sign::both || value >= 0) values.push_back(value);
  }
  expect_nearest(values, 1);
}

// Tests the first and the last number of every entry in the lookup table.
TEST_P(Dynamic8, EveryIntervalFindsItsCodes) {
  std::vector<float> values;
  for (std::uint32_t upper = 0; upper < 0x3f80; ++upper)
    for (const std::uint32_t lower : {0x0000U, 0x7fffU, 0xffffU}) {
      values.push_back(std::bit_cast<float>(upper << 16 | lower));
      if (sign() == Sign::both) values.push_back(-values.back());
    }
  expect_nearest(values, 1);
}

// Tests all normalised magnitudes in ascending order, so the nearest code is the previous one or a later one. The short form
// tests one in 251.
TEST_P(Dynamic8, EveryNumberFindsItsNearestCode) {
  const std::uint32_t stride = long_form() ? 1 : 251;
  constexpr std::uint32_t kOne = std::bit_cast<std::uint32_t>(1.0F);
  const auto zero = static_cast<std::size_t>(std::ranges::find(map_, 0.0) - map_.begin());
  const auto distance = [&](float x, std::size_t code) { return std::abs(static_cast<double>(x) - map_[code]); };
  const std::size_t signs = sign() == Sign::both ? 2 : 1;
  std::size_t upward = zero, downward = zero;
  for (std::uint32_t next = 0; next <= kOne;) {
    float block[kBlock] = {1.0F}, scale = 0;
    std::uint8_t codes[kBlock], expected[kBlock];
    std::size_t count = 1;
    for (; count + signs <= kBlock && next <= kOne; next += stride) {
      const auto x = std::bit_cast<float>(next);
      while (upward + 1 < map_.size() && distance(x, upward + 1) < distance(x, upward)) ++upward;
      if (sign() == Sign::none && x != 0 && upward == zero) ++upward;
      block[count] = x;
      expected[count++] = static_cast<std::uint8_t>(upward);
      if (signs == 1) continue;
      while (downward > 0 && distance(-x, downward - 1) < distance(-x, downward)) --downward;
      block[count] = -x;
      expected[count++] = static_cast<std::uint8_t>(downward);
    }
    rules::dynamic8::encode(isa(), sign(), codes, &scale, block, 1);
    ASSERT_EQ(scale, 1.0F);
    for (std::size_t i = 1; i < count; ++i) ASSERT_EQ(codes[i], expected[i]) << std::hexfloat << block[i];
  }
}

// Blocks with only zeros, and blocks with a number that no scale can represent.
TEST_P(Dynamic8, BlocksWithoutCodesShowIt) {
  const std::size_t zero = sign() == Sign::both ? 127 : 0;
  for (const float odd : {0.0F, -0.0F, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    float blocks[2 * kBlock] = {}, decoded[2 * kBlock], scales[2] = {-1, -1};
    std::uint8_t codes[2 * kBlock];
    blocks[3] = std::isnan(odd) || odd > 0 ? 0.5F : 0.0F;
    blocks[77] = odd;
    blocks[kBlock + 5] = 2;
    rules::dynamic8::encode(isa(), sign(), codes, scales, blocks, 2);
    rules::dynamic8::decode(isa(), sign(), decoded, codes, scales, 2);
    for (std::size_t i = 0; i < kBlock; ++i) {
      ASSERT_EQ(codes[i], zero);
      ASSERT_TRUE(odd == 0 ? decoded[i] == 0 : std::isnan(decoded[i])) << decoded[i];
    }
    ASSERT_EQ(scales[1], 2);  // the next block is not affected
    ASSERT_EQ(decoded[kBlock + 5], 2);
    ASSERT_EQ(decoded[kBlock + 6], 0);
  }
}

TEST_P(Dynamic8, ScalesMayBeAnyNumber) {
  for (const float scale : {std::numeric_limits<float>::denorm_min(), 1e-40F, std::numeric_limits<float>::min(), 3e-20F, 0.7F,
                            1e20F, std::numeric_limits<float>::max()}) {
    std::vector<float> values;
    for (int i = 0; i <= 1000; ++i) values.push_back(scale * (static_cast<float>(i) / 1000.0F));
    expect_nearest(values, scale);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Dynamic8,
                         testing::Combine(testing::ValuesIn(rules::kAllIsas), testing::Values(Sign::both, Sign::none)),
                         [](const auto& test) {
                           return std::string(rules::name_of(std::get<0>(test.param))) +
                                  (std::get<1>(test.param) == Sign::both ? "_signed" : "_unsigned");
                         });

}  // namespace
}  // namespace terrace::test
