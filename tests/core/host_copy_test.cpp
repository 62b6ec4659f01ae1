#include <terrace/core/device/host_copy.h>

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace terrace {

// Every alignment of both ends, for sizes around the threshold, with guard bytes on both sides.
TEST(HostCopy, EqualsMemcpyAtEveryAlignment) {
  constexpr std::size_t kGuard = 128, kRoom = device::kNonTemporalBytes + 1024;
  std::vector<std::byte> from(kRoom), to(kRoom), want(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 131 >> 5);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, device::kNonTemporalBytes - 1, device::kNonTemporalBytes,
                                  device::kNonTemporalBytes + 65}) {
    for (const std::size_t to_offset : {0, 1, 31, 32, 63}) {
      for (const std::size_t from_offset : {0, 1, 17, 63}) {
        std::memset(to.data(), 0xA5, kRoom);
        std::memset(want.data(), 0xA5, kRoom);
        std::memcpy(want.data() + kGuard + to_offset, from.data() + from_offset, bytes);
        device::copy_bytes(to.data() + kGuard + to_offset, from.data() + from_offset, bytes);
        ASSERT_EQ(std::memcmp(to.data(), want.data(), kRoom), 0)
            << bytes << " bytes, to +" << to_offset << ", from +" << from_offset;
      }
    }
  }
}

// All sizes from zero to several cache lines.
TEST(HostCopy, PastTheCacheEqualsMemcpyAtEverySize) {
  constexpr std::size_t kRoom = 1024;
  std::vector<std::byte> from(kRoom), to(kRoom), want(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 131 >> 5);
  for (std::size_t bytes = 0; bytes < 300; ++bytes)
    for (const std::size_t offset : {64, 65, 100, 127}) {
      std::memset(to.data(), 0xA5, kRoom);
      std::memset(want.data(), 0xA5, kRoom);
      std::memcpy(want.data() + offset, from.data() + 3, bytes);
      device::copy_past_cache(to.data() + offset, from.data() + 3, bytes);
      ASSERT_EQ(std::memcmp(to.data(), want.data(), kRoom), 0) << bytes << " bytes, to +" << offset;
    }
}

// Sizes around whole blocks of pages, and the remainder.
TEST(HostCopy, FromMemoryEqualsMemcpyAtEverySize) {
  constexpr std::size_t kBlock = 32 * 1024, kRoom = 4 * kBlock;
  std::vector<std::byte> from(kRoom), to(kRoom), want(kRoom);
  for (std::size_t i = 0; i < kRoom; ++i) from[i] = static_cast<std::byte>(i * 2654435761U >> 24);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock, 3 * kBlock - 77})
    for (const std::size_t offset : {0, 1, 64, 100}) {
      std::memset(to.data(), 0xA5, kRoom);
      std::memset(want.data(), 0xA5, kRoom);
      std::memcpy(want.data() + offset, from.data() + 3, bytes);
      device::copy_from_memory(to.data() + offset, from.data() + 3, bytes);
      ASSERT_EQ(std::memcmp(to.data(), want.data(), kRoom), 0) << bytes << " bytes, to +" << offset;
    }
}

}  // namespace terrace
