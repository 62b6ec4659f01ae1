// A single flipped bit, a page from another place and a page of an earlier generation are found, and correct content is
// accepted.
#include <terrace/bench/disk/pattern.h>

#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include <terrace/tests/support/environment.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kFirstPage = 61;  // so that the blocks cross the end of the pattern
constexpr std::uint64_t kPages = 9;

class PatternTest : public testing::Test {
 protected:
  PatternTest() : bytes_(kPages * kPageBytes), generations_(kPages, 4) {
    pattern_.fill(bytes_, kFirstPage);
    pattern_.stamp(bytes_, kFirstPage, 4);
  }
  [[nodiscard]] std::optional<std::string> check() const { return pattern_.check(bytes_, kFirstPage, generations_); }

  Pattern pattern_{42};
  std::vector<std::byte> bytes_;
  std::vector<std::uint32_t> generations_;
};

TEST_F(PatternTest, WhatWasWrittenIsRight) {
  EXPECT_FALSE(check()) << *check();
  for (std::uint64_t p = 0; p < kPages; ++p) {
    const auto wrong = pattern_.check_stamp(bytes_.data() + p * kPageBytes, kFirstPage + p, 4);
    EXPECT_FALSE(wrong) << *wrong;
  }
}

TEST_F(PatternTest, AnyFlippedBitIsFound) {
  const auto seed = test::test_seed();
  std::mt19937_64 draw(seed);
  std::vector<std::uint64_t> places{0, 15, 16, kPageBytes - 1, kPageBytes, bytes_.size() - 1};
  for (int i = 0; i < 500; ++i) places.push_back(draw() % bytes_.size());
  for (const auto at : places) {
    const auto bit = std::byte{static_cast<unsigned char>(1U << draw() % 8)};
    bytes_[at] ^= bit;
    EXPECT_TRUE(check()) << "seed " << seed << ", byte " << at;
    bytes_[at] ^= bit;
  }
  EXPECT_FALSE(check());
}

TEST_F(PatternTest, ItSaysWhichByteDiffers) {
  bytes_[2 * kPageBytes + 100] ^= std::byte{1};
  EXPECT_THAT(check().value(), HasSubstr("byte 100 of page 63 is"));
}

TEST_F(PatternTest, APageOfAnotherPlaceIsNamed) {
  std::memcpy(bytes_.data(), bytes_.data() + 3 * kPageBytes, kPageBytes);
  EXPECT_THAT(check().value(), HasSubstr("page 61 holds page 64 of generation 4"));
}

TEST_F(PatternTest, AnOlderPageIsNamed) {
  pattern_.stamp({bytes_.data() + kPageBytes, kPageBytes}, kFirstPage + 1, 3);
  EXPECT_THAT(check().value(), HasSubstr("page 62 holds page 62 of generation 3, where generation 4 was written"));
}

TEST(StampPages, AreAPowerOfTwoThatDividesTheBlock) {
  EXPECT_EQ(1U, stamp_pages(4 * kKiB));
  EXPECT_EQ(1U, stamp_pages(12 * kKiB));
  EXPECT_EQ(8U, stamp_pages(96 * kKiB));
  EXPECT_EQ(16U, stamp_pages(64 * kKiB));
  EXPECT_EQ(16U, stamp_pages(8 * kMiB));
}

TEST(StampPages, WithFewerStampsEveryFlippedBitIsFoundAllTheSame) {
  const Pattern pattern(1, 4);
  std::vector<std::byte> bytes(16 * kPageBytes);
  const std::vector<std::uint32_t> generations(16, 2);
  pattern.fill(bytes, 32);
  pattern.stamp(bytes, 32, 2);
  ASSERT_FALSE(pattern.check(bytes, 32, generations));
  for (std::uint64_t at = 0; at < bytes.size(); at += 511) {
    bytes[at] ^= std::byte{4};
    ASSERT_TRUE(pattern.check(bytes, 32, generations)) << at;
    bytes[at] ^= std::byte{4};
  }
}

TEST_F(PatternTest, AnotherSeedIsAnotherPattern) {
  const Pattern other(43);
  EXPECT_TRUE(other.check(bytes_, kFirstPage, generations_));
}

TEST_F(PatternTest, PagesDiffer) {
  // A disk that deduplicates equal pages must not look faster than it is.
  std::vector<std::byte> all(2 * kPatternBytes);
  pattern_.fill(all, 0);
  pattern_.stamp(all, 0, 1);
  EXPECT_NE(0, std::memcmp(all.data(), all.data() + kPatternBytes, kPageBytes));
  EXPECT_NE(0, std::memcmp(all.data() + 64, all.data() + kPageBytes + 64, kPageBytes - 64));
}

}  // namespace
}  // namespace terrace::bench
