// Memory of a GPU that does not exist. It has two addresses: the device's address, which programs use and which the host cannot
// access, and another one through which the fake's copies and kernels access the bytes. The pages at both ends are unused
// guards.
//
// The two addresses differ in one bit of their upper half, if possible in the sixth byte. The fake recognises addresses among a
// kernel's arguments by their value. So it may mistake a number for an address if the padding after it happens to contain the
// upper half of an address; the replacement then only changes padding.
//
// Owner: the fake's memory. Threads: any. Errors: std::bad_alloc.
#pragma once

#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

#include <terrace/core/base/units.h>

namespace terrace::test {

class DeviceBlock {
 public:
  DeviceBlock() = default;
  // If `apart` is false, both addresses are the same.
  DeviceBlock(std::size_t bytes, std::byte poison, bool apart)
      : bytes_(round_up(bytes, kPageBytes)), here_(reserve(nullptr)), device_(apart ? reserve_beside() : here_) {
    if (bytes_ != 0 && ::mprotect(here_ + kPageBytes, bytes_, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    std::memset(here(), static_cast<int>(poison), bytes);
  }
  DeviceBlock(DeviceBlock&& other) noexcept { *this = std::move(other); }
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(bytes_, other.bytes_), std::swap(here_, other.here_), std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceBlock() {
    if (device_ != here_) ::munmap(device_, bytes_ + 2 * kPageBytes);
    if (here_) ::munmap(here_, bytes_ + 2 * kPageBytes);
  }

  explicit operator bool() const { return here_ != nullptr; }
  [[nodiscard]] std::byte* here() const { return here_ + kPageBytes; }
  [[nodiscard]] std::byte* device() const { return device_ + kPageBytes; }

 private:
  // Reserves memory at `wanted` if it is free there and the kernel agrees.
  [[nodiscard]] std::byte* reserve(void* wanted) const {
    void* const at = ::mmap(wanted, bytes_ + 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(at);
  }
  [[nodiscard]] std::byte* reserve_beside() const {
    for (const int bit : kBits) {
      auto* const wanted = std::bit_cast<std::byte*>(std::bit_cast<std::uintptr_t>(here_) ^ std::uintptr_t{1} << bit);
      auto* const at = reserve(wanted);
      if (at == wanted) return at;
      ::munmap(at, bytes_ + 2 * kPageBytes);
    }
    throw std::bad_alloc();
  }

  // The sixth byte first. On x86-64 no address of a process has bit 47, and under ThreadSanitizer few bits give an address that
  // a process may use.
  static constexpr std::array kBits{40, 41, 42, 43, 44, 45, 46, 39, 38, 37, 36, 35, 34, 33, 32};
  std::size_t bytes_ = 0;
  std::byte *here_ = nullptr, *device_ = nullptr;  // start of the first page, an unused guard
};

}  // namespace terrace::test
