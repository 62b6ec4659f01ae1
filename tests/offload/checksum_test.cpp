// Every instruction set gives the same number as the xxHash library, because a store may be read on another machine.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <random>
#include <span>
#include <vector>

#include <terrace/offload/store/checksum_kernels.h>
#include <terrace/offload/store/chunk_store.h>

namespace terrace {
namespace {

TEST(Checksum, EveryKernelGivesTheLibrarysNumber) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(300'000);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  const auto kernels = store::checksum_kernels();
  ASSERT_FALSE(kernels.empty());
  for (const std::size_t length :
       {0UL, 1UL, 16UL, 17UL, 128UL, 129UL, 240UL, 241UL, 1024UL, 4096UL, 8192UL, 65537UL, 262144UL}) {
    for (const std::size_t at : {0UL, 1UL, 64UL}) {  // also unaligned
      const auto expected = XXH3_64bits(bytes.data() + at, length);
      for (std::size_t k = 0; k < kernels.size(); ++k)
        EXPECT_EQ(expected, kernels[k](bytes.data() + at, length)) << "kernel " << k << ", " << length << " bytes from " << at;
      EXPECT_EQ(expected, checksum_of(std::span(bytes).subspan(at, length)));
    }
  }
}

}  // namespace
}  // namespace terrace
