// The memory that the fake CUDA runtime knows: allocations of its device, and registered host memory. Ranges of the device have
// device addresses (device_block.h).
//
// Owner:   the fake. Threads: one at a time. Errors: CUDA's codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include <terrace/core/cuda/runtime.h>
#include <terrace/tests/support/gpu/device_block.h>

namespace terrace::test {

inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaAlreadyRegistered = 712, kCudaNotRegistered = 713;

class FakeCudaMemory {
 public:
  FakeCudaMemory(std::size_t capacity_bytes, bool apart) : capacity_bytes_(capacity_bytes), apart_(apart) {}

  [[nodiscard]] std::size_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }

  int allocate(void** data, std::size_t bytes, std::byte poison) {
    if (bytes > capacity_bytes_ - used_bytes_) return cuda::kCudaOutOfMemory;
    DeviceBlock block(bytes, poison, apart_);
    *data = block.device();
    used_bytes_ += bytes;
    ranges_[address(*data)] = {bytes, ++numbers_, std::move(block)};
    return cuda::kCudaSuccess;
  }
  int free(void* data) {
    const auto found = ranges_.find(address(data));
    if (found == ranges_.end() || !found->second.block) return kCudaInvalidValue;
    used_bytes_ -= found->second.bytes;
    ranges_.erase(found);
    return cuda::kCudaSuccess;
  }
  int add_host(void* data, std::size_t bytes) {
    if (bytes == 0) return kCudaInvalidValue;
    const auto after = ranges_.lower_bound(address(data));
    if (after != ranges_.end() && after->first < address(data) + bytes) return kCudaAlreadyRegistered;
    if (range_of(data)) return kCudaAlreadyRegistered;
    ranges_[address(data)] = {bytes, ++numbers_, {}};
    return cuda::kCudaSuccess;
  }
  int remove_host(void* data) {
    const auto found = ranges_.find(address(data));
    if (found == ranges_.end() || found->second.block) return kCudaNotRegistered;
    ranges_.erase(found);
    return cuda::kCudaSuccess;
  }

  [[nodiscard]] bool is_device_memory(const void* data) const {
    const auto* const range = range_of(data);
    return range && range->second.block;
  }
  // The address at which copies and kernels find this address's bytes; it may be the end of an allocation.
  [[nodiscard]] std::byte* reach(const void* data) const {
    const auto after = ranges_.upper_bound(address(data));
    if (after != ranges_.begin()) {
      const auto& [first, range] = *std::prev(after);
      if (range.block && address(data) <= first + range.bytes) return range.block.here() + (address(data) - first);
    }
    return static_cast<std::byte*>(const_cast<void*>(data));
  }
  // Identifies the memory that a copy or kernel uses: returns a number that is never reused, 0 for memory unknown to CUDA, or
  // -1 if the span leaves its range.
  [[nodiscard]] std::int64_t span(const void* data, std::size_t bytes) const {
    const auto* const range = range_of(data);
    if (range) return address(data) + bytes <= range->first + range->second.bytes ? range->second.number : -1;
    const auto after = ranges_.lower_bound(address(data));
    return after != ranges_.end() && after->first < address(data) + bytes ? -1 : 0;
  }

  [[nodiscard]] std::string describe() const {  // the remaining ranges
    std::string text;
    for (const auto& [begin, range] : ranges_) {
      text += std::string(text.empty() ? "" : ", ") + (range.block ? "device memory of " : "registered memory of ") +
              std::to_string(range.bytes) + " bytes";
    }
    return text;
  }

 private:
  struct Range {
    std::size_t bytes = 0;
    std::int64_t number = 0;
    DeviceBlock block = {};  // empty: host memory
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  static std::uintptr_t address(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
  [[nodiscard]] const Ranges::value_type* range_of(const void* data) const {
    auto after = ranges_.upper_bound(address(data));
    if (after == ranges_.begin()) return nullptr;
    const auto& range = *--after;
    return address(data) < range.first + range.second.bytes ? &range : nullptr;
  }

  const std::size_t capacity_bytes_;
  const bool apart_;
  std::size_t used_bytes_ = 0;
  std::int64_t numbers_ = 0;
  Ranges ranges_;
};

}  // namespace terrace::test
