// Every instruction set folds to the bits of the specification.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include <terrace/core/philox.h>
#include <terrace/parallel/comm/fold_kernels.h>
#include <terrace/parallel/comm/narrow.h>

#include "comm/oracle.h"

namespace terrace {
namespace {

using test::Buffer;

const std::vector<std::pair<DType, DType>> kTypes = {
    {DType::fp32, DType::fp32}, {DType::fp64, DType::fp64}, {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}};

TEST(Fold, EveryInstructionSetFoldsToTheSameBits) {
  for (int table = 0; table < folding::kKernelTables; ++table) {
    const auto* const kernels = folding::kernels_if_supported(table);
    if (!kernels) continue;
    for (std::size_t types = 0; types < kTypes.size(); ++types) {
      for (int variant = 0; variant < 4; ++variant) {
        const auto [from_dtype, to_dtype] = kTypes[types];
        const Reduction r{from_dtype, to_dtype, variant & 1 ? Fold::max : Fold::sum, (variant & 2) != 0};
        for (const std::size_t count : {0U, 1U, 7U, 15U, 16U, 17U, 63U, 64U, 65U, 131U, 1000U}) {
          for (const std::size_t sources : {1U, 2U, 3U, 8U}) {
            const auto seed = count * 100 + sources;
            std::vector<Buffer> from;
            std::vector<const void*> pointers;
            for (std::size_t s = 0; s < sources; ++s) from.push_back(test::random_elements(r.from, count, seed * 10 + s));
            for (const auto& buffer : from) pointers.push_back(buffer.data());
            Buffer to = test::random_elements(r.to, count, seed + 5);
            const auto want = test::fold_oracle(r, from, 0, count, to);
            kernels->kernel[types][r.fold == Fold::max][r.onto](to.data(), pointers.data(), static_cast<int>(sources),
                                                                static_cast<std::int64_t>(count));
            ASSERT_TRUE(want == to) << kernels->name << ", " << to_string(r) << ", " << count << " elements of " << sources;
          }
        }
      }
    }
  }
}

TEST(Fold, InPlaceOfAnySource) {
  const auto r = Reduction::sum(DType::bf16);
  for (std::size_t place = 0; place < 3; ++place) {
    std::vector<Buffer> from;
    for (std::uint64_t s = 0; s < 3; ++s) from.push_back(test::random_elements(r.from, 333, s));
    const auto want = test::fold_oracle(r, from, 0, 333);
    const std::vector<const std::byte*> pointers = {from[0].data(), from[1].data(), from[2].data()};
    fold(r, from[place].data(), pointers, 333);
    EXPECT_TRUE(want == from[place]) << place;
  }
}

TEST(Fold, ANaNIsNeverTheSmaller) {
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a(40, 1.0F), b(40, 2.0F), to(40);
  a[3] = nan;
  b[39] = nan;
  const std::vector<const std::byte*> pointers = {reinterpret_cast<const std::byte*>(a.data()),
                                                  reinterpret_cast<const std::byte*>(b.data())};
  fold(Reduction::max(DType::fp32), reinterpret_cast<std::byte*>(to.data()), pointers, 40);
  EXPECT_TRUE(std::isnan(to[3]) && std::isnan(to[39]));
  EXPECT_EQ(2.0F, to[0]);
}

// Nearest even, within the bound; and sums of them within the bound's sum.
TEST(Narrow, IsWithinItsBoundAndSumsAre) {
  constexpr std::uint64_t kSeed = 7;
  constexpr std::size_t kCount = 3000;  // not whole tiles
  constexpr std::size_t kRanks = 5;
  std::vector<std::vector<float>> wide(kRanks, std::vector<float>(kCount));
  std::vector<const std::byte*> sources;
  auto narrow = wide;
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto bits = random_below(kSeed, r, i, 1U << 20);
      wide[r][i] = std::ldexp(static_cast<float>(bits) - (1 << 19), static_cast<int>(i % 60) - 40);
    }
    narrow[r] = wide[r];
    narrow_in_place(reinterpret_cast<std::byte*>(narrow[r].data()), kCount);
    sources.push_back(reinterpret_cast<const std::byte*>(narrow[r].data()));
    for (std::size_t i = 0; i < kCount; ++i) {
      bf16 got;
      std::memcpy(&got, sources[r] + i * sizeof(bf16), sizeof got);
      EXPECT_LE(std::abs(static_cast<float>(got) - wide[r][i]), std::abs(wide[r][i]) / 256)
          << "seed " << kSeed << ", element " << i;
    }
  }
  std::vector<float> sums(kCount);
  fold({DType::bf16, DType::fp32, Fold::sum, false}, reinterpret_cast<std::byte*>(sums.data()), sources, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    double sum = 0, magnitudes = 0;
    for (const auto& of : wide) sum += of[i], magnitudes += std::abs(of[i]);
    EXPECT_LE(std::abs(sums[i] - sum), magnitudes / 256 * (1 + 1e-5)) << "seed " << kSeed << ", element " << i;
  }
  std::vector<float> special{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf(""),
                             -0.0F};
  narrow_in_place(reinterpret_cast<std::byte*>(special.data()), 4);
  std::vector<bf16> kept(4);
  std::memcpy(static_cast<void*>(kept.data()), special.data(), 4 * sizeof(bf16));
  EXPECT_EQ(static_cast<float>(kept[0]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(kept[1]), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(static_cast<float>(kept[2])));
  EXPECT_TRUE(std::signbit(static_cast<float>(kept[3])));
}

}  // namespace
}  // namespace terrace
