// Every instruction set folds to the bits of the specification.
#include <gtest/gtest.h>

#include <limits>

#include <terrace/parallel/comm/fold_kernels.h>

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

}  // namespace
}  // namespace terrace
