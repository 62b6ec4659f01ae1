// Memory of a GPU that is not there. It has two addresses: the device's, which a program passes around and at which the host
// can reach nothing, and another one at which the fake's copies and kernels find the bytes. Pages at both ends belong to
// nothing.
//
// Owner: the fake's memory. Threads: any. Errors: std::bad_alloc.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>
#include <new>
#include <utility>

#include <terrace/core/units.h>

namespace terrace::test {

class DeviceBlock {
 public:
  DeviceBlock() = default;
  // `apart`: else both addresses are one.
  DeviceBlock(std::size_t bytes, std::byte poison, bool apart)
      : bytes_(round_up(bytes, kPageBytes)), here_(reserve()), device_(apart ? reserve() : here_) {
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
  [[nodiscard]] std::byte* reserve() const {
    void* const at = ::mmap(nullptr, bytes_ + 2 * kPageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(at);
  }

  std::size_t bytes_ = 0;
  std::byte *here_ = nullptr, *device_ = nullptr;  // of the first page, which belongs to nothing
};

}  // namespace terrace::test
