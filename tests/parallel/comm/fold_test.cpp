// Every instruction set folds to the bits of the specification.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include <terrace/core/math/block8.h>
#include <terrace/core/math/narrow.h>
#include <terrace/core/math/philox.h>
#include <terrace/parallel/comm/fold.h>
#include <terrace/parallel/comm/fold_kernels.h>

#include <terrace/tests/parallel/comm/oracle.h>

namespace terrace {
namespace {

using test::Buffer;

const std::vector<std::pair<DType, DType>> kTypes = {
    {DType::fp32, DType::fp32}, {DType::fp64, DType::fp64}, {DType::bf16, DType::bf16}, {DType::bf16, DType::fp32}};

TEST(Fold, EveryInstructionSetFoldsToTheSameBits) {
  for (int table = 0; table < comm::folding::kKernelTables; ++table) {
    const auto* const kernels = comm::folding::kernels_if_supported(table);
    if (!kernels) continue;
    for (std::size_t types = 0; types < kTypes.size(); ++types) {
      for (int variant = 0; variant < 4; ++variant) {
        const auto [from_dtype, to_dtype] = kTypes[types];
        const comm::Reduction r{from_dtype, to_dtype, variant & 1 ? comm::Fold::max : comm::Fold::sum, (variant & 2) != 0};
        for (const std::size_t count : {0U, 1U, 7U, 15U, 16U, 17U, 63U, 64U, 65U, 131U, 1000U, 5000U}) {
          for (const std::size_t sources : {1U, 2U, 3U, 8U}) {
            const auto seed = count * 100 + sources;
            std::vector<Buffer> from;
            std::vector<const void*> pointers;
            for (std::size_t s = 0; s < sources; ++s) from.push_back(test::random_elements(r.from, count, seed * 10 + s));
            for (const auto& buffer : from) pointers.push_back(buffer.data());
            Buffer to = test::random_elements(r.to, count, seed + 5);
            const auto want = test::fold_oracle(r, from, 0, count, to);
            kernels->kernel[types][r.fold == comm::Fold::max][r.onto](to.data(), pointers.data(), static_cast<int>(sources),
                                                                      static_cast<std::int64_t>(count));
            ASSERT_TRUE(want == to) << kernels->name << ", " << comm::to_string(r) << ", " << count << " elements of "
                                    << sources;
          }
        }
      }
    }
  }
}

// At every address of the result, nothing beside it is touched, and the bits are fold()'s.
TEST(Fold, PastTheCacheTheBitsAreTheSame) {
  constexpr std::size_t kBefore = 256, kFill = 0x5a;
  for (const auto& [from_dtype, to_dtype] : kTypes)
    for (int variant = 0; variant < 4; ++variant) {
      const comm::Reduction r{from_dtype, to_dtype, variant & 1 ? comm::Fold::max : comm::Fold::sum, (variant & 2) != 0};
      for (const std::size_t count : {0U, 1U, 15U, 63U, 64U, 65U, 200U, 1000U, 5000U})
        for (const std::size_t offset : {0U, 1U, 2U, 8U, 16U, 24U, 63U}) {
          std::vector<Buffer> from;
          for (std::uint64_t s = 0; s < 3; ++s) from.push_back(test::random_elements(r.from, count, count * 10 + s));
          const std::vector<const std::byte*> pointers = {from[0].data(), from[1].data(), from[2].data()};
          const auto held = test::random_elements(r.to, count, 77);
          const auto want = test::fold_oracle(r, from, 0, count, held);
          Buffer all(kBefore + held.size() + 256, std::byte{kFill});
          std::byte* to = all.data() + 64 - reinterpret_cast<std::uintptr_t>(all.data()) % 64 + offset;
          std::copy(held.begin(), held.end(), to);
          comm::fold_past_cache(r, to, pointers, static_cast<std::int64_t>(count));
          ASSERT_EQ(0, std::memcmp(want.data(), to, want.size())) << comm::to_string(r) << ", " << count << " at " << offset;
          ASSERT_TRUE(std::all_of(all.data(), to, [](std::byte b) { return b == std::byte{kFill}; }));
          ASSERT_TRUE(
              std::all_of(to + want.size(), all.data() + all.size(), [](std::byte b) { return b == std::byte{kFill}; }));
        }
    }
}

TEST(Fold, EveryInstructionSetWritesTheSameBitsPastTheCache) {
  for (int table = 0; table < comm::folding::kKernelTables; ++table) {
    const auto* const kernels = comm::folding::kernels_if_supported(table);
    if (!kernels) continue;
    for (std::size_t types = 0; types < kTypes.size(); ++types)
      for (const bool max : {false, true})
        for (const std::size_t count : {0U, 7U, 64U, 131U, 5000U}) {
          const comm::Reduction r{kTypes[types].first, kTypes[types].second, max ? comm::Fold::max : comm::Fold::sum};
          std::vector<Buffer> from;
          std::vector<const void*> pointers;
          for (std::uint64_t s = 0; s < 4; ++s) from.push_back(test::random_elements(r.from, count, count + s));
          for (const auto& buffer : from) pointers.push_back(buffer.data());
          alignas(64) std::array<std::byte, 5000 * 8> to = {};
          kernels->past_cache[types][max](to.data(), pointers.data(), 4, static_cast<std::int64_t>(count));
          const auto want = test::fold_oracle(r, from, 0, count);
          ASSERT_EQ(0, std::memcmp(want.data(), to.data(), want.size())) << kernels->name << ", " << comm::to_string(r);
        }
  }
}

TEST(Fold, InPlaceOfAnySource) {
  const auto r = comm::Reduction::sum(DType::bf16);
  for (std::size_t place = 0; place < 3; ++place) {
    std::vector<Buffer> from;
    for (std::uint64_t s = 0; s < 3; ++s) from.push_back(test::random_elements(r.from, 333, s));
    const auto want = test::fold_oracle(r, from, 0, 333);
    const std::vector<const std::byte*> pointers = {from[0].data(), from[1].data(), from[2].data()};
    comm::fold(r, from[place].data(), pointers, 333);
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
  comm::fold(comm::Reduction::max(DType::fp32), reinterpret_cast<std::byte*>(to.data()), pointers, 40);
  EXPECT_TRUE(std::isnan(to[3]) && std::isnan(to[39]));
  EXPECT_EQ(2.0F, to[0]);
}

TEST(Fold, EveryInstructionSetSumsBlocksToTheSameBits) {
  for (int table = 0; table < comm::folding::kKernelTables; ++table) {
    const auto* const kernels = comm::folding::kernels_if_supported(table);
    if (!kernels) continue;
    for (const std::size_t blocks : {0U, 1U, 3U})
      for (const std::size_t sources : {1U, 2U, 5U})
        for (const bool onto : {false, true}) {
          std::vector<Buffer> from;
          std::vector<const void*> pointers;
          for (std::size_t s = 0; s < sources; ++s)
            from.push_back(test::pack_oracle(test::random_floats(blocks * test::kOracleBlock, 10 * blocks + s)));
          for (const auto& buffer : from) pointers.push_back(buffer.data());
          auto to = test::random_floats(blocks * test::kOracleBlock, 99);
          const auto want = test::fold_blocks_oracle(from, 0, blocks, onto ? to : std::vector<float>{});
          kernels->kernel[comm::folding::block8_to_fp32][0][onto](to.data(), pointers.data(), static_cast<int>(sources),
                                                                  static_cast<std::int64_t>(blocks));
          ASSERT_EQ(want, to) << kernels->name << ", " << blocks << " blocks of " << sources;
        }
  }
  EXPECT_FALSE(comm::is_supported({.fold = comm::Fold::max, .blocks = true}));
  EXPECT_FALSE(comm::is_supported({.from = DType::bf16, .to = DType::bf16, .blocks = true}));
}

// The bits are those of the specification, in place or not, and the error stays within its bound.
TEST(Block8, PacksAndUnpacksAsSpecified) {
  constexpr std::size_t kBlocks = 9, kCount = kBlocks * test::kOracleBlock;
  auto x = test::random_floats(kCount, 3);
  for (std::size_t i = 0; i < test::kOracleBlock; ++i) {
    x[test::kOracleBlock + i] = 0;
    x[2 * test::kOracleBlock + i] *= 0x1p-130F;                                                 // below the smallest
    x[3 * test::kOracleBlock + i] = std::ldexp(static_cast<float>(i % 255) - 127.0F, 100) / 2;  // ties
    x[4 * test::kOracleBlock + i] *= 0x1p-118F;
    x[5 * test::kOracleBlock + i] = 0x1.fffffep126F * (i % 2 == 0 ? 1 : -0.3F);  // the largest
  }
  x[6 * test::kOracleBlock + 7] = std::numeric_limits<float>::infinity();
  x[7 * test::kOracleBlock + 200] = std::nanf("");
  x[8 * test::kOracleBlock] = 0x1p127F;
  const auto want = test::pack_oracle(x);
  Buffer packed(want.size());
  math::pack_block8(packed.data(), DType::fp32, reinterpret_cast<const std::byte*>(x.data()), kBlocks);
  EXPECT_TRUE(want == packed);
  auto in_place = x;
  math::pack_block8(reinterpret_cast<std::byte*>(in_place.data()), DType::fp32,
                    reinterpret_cast<const std::byte*>(in_place.data()), kBlocks);
  EXPECT_EQ(0, std::memcmp(in_place.data(), want.data(), want.size()));

  const auto unpacked = test::unpack_oracle(want);
  Buffer tail(kCount * sizeof(float));  // unpacked over itself
  std::byte* const last = tail.data() + tail.size() - want.size();
  std::memcpy(last, want.data(), want.size());
  math::unpack_block8(DType::fp32, tail.data(), last, kBlocks);
  EXPECT_EQ(0, std::memcmp(tail.data(), unpacked.data(), tail.size()));
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto block = i / test::kOracleBlock;
    if (block >= 6) {
      EXPECT_TRUE(std::isnan(unpacked[i])) << i;
      continue;
    }
    float m = 0;
    for (std::size_t k = 0; k < test::kOracleBlock; ++k) m = std::max(m, std::abs(x[block * test::kOracleBlock + k]));
    EXPECT_LE(std::abs(static_cast<double>(unpacked[i]) - x[i]), std::max(m / 254.0 * (1 + 1e-5), 0x1p-119)) << i;
  }

  std::vector<bf16> narrow(kCount);
  std::vector<float> widened(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    narrow[i] = bf16(x[i]);
    widened[i] = static_cast<float>(narrow[i]);
  }
  Buffer of_bf16(want.size()), back(kCount * sizeof(bf16));
  math::pack_block8(of_bf16.data(), DType::bf16, reinterpret_cast<const std::byte*>(narrow.data()), kBlocks);
  EXPECT_TRUE(test::pack_oracle(widened) == of_bf16);
  std::memcpy(back.data() + back.size() - of_bf16.size(), of_bf16.data(), of_bf16.size());
  math::unpack_block8(DType::bf16, back.data(), back.data() + back.size() - of_bf16.size(), kBlocks);
  const auto rounded = test::unpack_oracle(of_bf16);
  for (std::size_t i = 0; i < kCount; ++i) {
    if (std::isnan(rounded[i])) continue;
    EXPECT_EQ(bf16(rounded[i]).bits, test::element<bf16>(back, i).bits) << i;
  }
}

// Values are rounded to nearest even, within the bound; errors of sums are within the sum of the bounds.
TEST(Narrow, IsWithinItsBoundAndSumsAre) {
  constexpr std::uint64_t kSeed = 7;
  constexpr std::size_t kCount = 3000;  // not whole tiles
  constexpr std::size_t kRanks = 5;
  std::vector<std::vector<float>> wide(kRanks, std::vector<float>(kCount));
  std::vector<const std::byte*> sources;
  auto narrow = wide;
  for (std::size_t r = 0; r < kRanks; ++r) {
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto bits = math::random_below(kSeed, r, i, 1U << 20);
      wide[r][i] = std::ldexp(static_cast<float>(bits) - (1 << 19), static_cast<int>(i % 60) - 40);
    }
    narrow[r] = wide[r];
    math::narrow_in_place(reinterpret_cast<std::byte*>(narrow[r].data()), kCount);
    sources.push_back(reinterpret_cast<const std::byte*>(narrow[r].data()));
    for (std::size_t i = 0; i < kCount; ++i) {
      bf16 got;
      std::memcpy(&got, sources[r] + i * sizeof(bf16), sizeof got);
      EXPECT_LE(std::abs(static_cast<float>(got) - wide[r][i]), std::abs(wide[r][i]) / 256)
          << "seed " << kSeed << ", element " << i;
    }
  }
  std::vector<float> sums(kCount);
  comm::fold({DType::bf16, DType::fp32, comm::Fold::sum, false}, reinterpret_cast<std::byte*>(sums.data()), sources, kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    double sum = 0, magnitudes = 0;
    for (const auto& of : wide) sum += of[i], magnitudes += std::abs(of[i]);
    EXPECT_LE(std::abs(sums[i] - sum), magnitudes / 256 * (1 + 1e-5)) << "seed " << kSeed << ", element " << i;
  }
  std::vector<float> special{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf(""),
                             -0.0F};
  math::narrow_in_place(reinterpret_cast<std::byte*>(special.data()), 4);
  std::vector<bf16> kept(4);
  std::memcpy(static_cast<void*>(kept.data()), special.data(), 4 * sizeof(bf16));
  EXPECT_EQ(static_cast<float>(kept[0]), std::numeric_limits<float>::infinity());
  EXPECT_EQ(static_cast<float>(kept[1]), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(static_cast<float>(kept[2])));
  EXPECT_TRUE(std::signbit(static_cast<float>(kept[3])));
}

}  // namespace
}  // namespace terrace
