#include <terrace/core/base/units.h>

#include <gmock/gmock.h>

#include <terrace/tests/support/thrown_error.h>

namespace terrace {

TEST(Units, ParsesEveryForm) {
  const struct {
    const char* text;
    std::uint64_t bytes;
  } table[] = {
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"512MiB", 512 * kMiB},
      {"1.5GiB", 3 * kGiB / 2},
      {"1.50 GiB", 3 * kGiB / 2},
      {"16GB", 16'000'000'000},
      {"2KB", 2000},
      {"2kib", 2048},
      {"3MB", 3'000'000},
      {"2TB", 2'000'000'000'000},
      {"1TiB", kGiB * kKiB},
      {"0.1KiB", 102},                            // rounded down to whole bytes
      {"0.3GB", 300'000'000},                     // 0.3 has no exact double
      {"9007199254740993", 9007199254740993ULL},  // neither has this
      {"18446744073709551614", ~0ULL - 1},
      {"16777215TiB", 16777215ULL << 40},
      {"unlimited", kUnlimited},
      {"Unlimited", kUnlimited},
  };
  for (const auto& row : table) EXPECT_EQ(parse_bytes(row.text), row.bytes) << row.text;
}

TEST(Units, RefusesWhatIsNoSize) {
  for (const char* text : {"",
                           " ",
                           "12XB",
                           "-1",
                           "+1",
                           "1e30GiB",
                           "1e3",
                           "GiB",
                           ".5GiB",
                           "1.GiB",
                           "1.5",
                           "1.5B",
                           "1..5GiB",
                           "1,5GiB",
                           "4 096",
                           "1  GiB",
                           " 1GiB",
                           "1GiB ",
                           "0x10",
                           "nan",
                           "inf",
                           "unlimited!",
                           "1.1234567890123456GiB",
                           "18446744073709551615",
                           "18446744073709551616",
                           "99999999999999999999999999",
                           "16777216TiB",
                           "18014398509481984KiB",
                           "1PiBB"}) {
    EXPECT_THAT(test::refusal_of([&] { parse_bytes(text); }),
                testing::AllOf(testing::HasSubstr("\"" + std::string(text) + "\""), testing::HasSubstr("512MiB")));
  }
}

TEST(Units, FormatsThreeDigits) {
  const struct {
    std::uint64_t bytes;
    const char* text;
  } table[] = {
      {0, "0 B"},
      {1023, "1023 B"},
      {1024, "1.00 KiB"},
      {3 * kGiB / 2, "1.50 GiB"},
      {10235, "10.0 KiB"},  // 9.995: rounding must not give a fourth digit
      {10 * kMiB, "10.0 MiB"},
      {100 * kMiB, "100 MiB"},
      {kMiB - 1, "1.00 MiB"},
      {kMiB - kKiB, "1023 KiB"},
      {~0ULL - 1, "16.0 EiB"},
      {kUnlimited, "unlimited"},
  };
  for (const auto& row : table) EXPECT_EQ(format_bytes(row.bytes), row.text) << row.bytes;
}

TEST(Units, FormatsParseBack) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, kKiB, 3 * kGiB / 2, 640 * kMiB, kUnlimited}) {
    EXPECT_EQ(parse_bytes(format_bytes(bytes)), bytes);
  }
}

TEST(Units, Rounds) {
  EXPECT_EQ(round_up(0, 4096), 0U);
  EXPECT_EQ(round_up(1, 4096), 4096U);
  EXPECT_EQ(round_up(4096, 4096), 4096U);
  EXPECT_EQ(ceil_div(7, 3), 3U);
}

}  // namespace terrace
