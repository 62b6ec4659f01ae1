// The memory that the fake CUDA runtime knows: allocations of its device, and registered host memory.
//
// Owner:   the fake. Threads: one at a time. Errors: CUDA's codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>

#include <terrace/core/cuda/runtime.h>

namespace terrace::test {

inline constexpr int kCudaInvalidValue = 1;
inline constexpr int kCudaAlreadyRegistered = 712, kCudaNotRegistered = 713;

class FakeCudaMemory {
 public:
  explicit FakeCudaMemory(std::size_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  [[nodiscard]] std::size_t capacity_bytes() const { return capacity_bytes_; }
  [[nodiscard]] std::size_t used_bytes() const { return used_bytes_; }

  int allocate(void** data, std::size_t bytes, std::byte poison) {
    if (bytes > capacity_bytes_ - used_bytes_) return kCudaOutOfMemory;
    Block block(static_cast<std::byte*>(::operator new(bytes, kAligned)));
    std::memset(block.get(), static_cast<int>(poison), bytes);
    *data = block.get();
    used_bytes_ += bytes;
    ranges_[address(*data)] = {bytes, ++numbers_, std::move(block)};
    return kCudaSuccess;
  }
  int free(void* data) {
    const auto found = ranges_.find(address(data));
    if (found == ranges_.end() || !found->second.block) return kCudaInvalidValue;
    used_bytes_ -= found->second.bytes;
    ranges_.erase(found);
    return kCudaSuccess;
  }
  int add_host(void* data, std::size_t bytes) {
    if (bytes == 0) return kCudaInvalidValue;
    const auto after = ranges_.lower_bound(address(data));
    if (after != ranges_.end() && after->first < address(data) + bytes) return kCudaAlreadyRegistered;
    if (range_of(data)) return kCudaAlreadyRegistered;
    ranges_[address(data)] = {bytes, ++numbers_, nullptr};
    return kCudaSuccess;
  }
  int remove_host(void* data) {
    const auto found = ranges_.find(address(data));
    if (found == ranges_.end() || found->second.block) return kCudaNotRegistered;
    ranges_.erase(found);
    return kCudaSuccess;
  }

  [[nodiscard]] bool is_device_memory(const void* data) const {
    const auto* const range = range_of(data);
    return range && range->second.block;
  }
  // What a copy or a kernel touches: a number that is never used again, 0 for memory that CUDA does not know, -1 for a span
  // that leaves its range.
  [[nodiscard]] std::int64_t span(const void* data, std::size_t bytes) const {
    const auto* const range = range_of(data);
    if (range) return address(data) + bytes <= range->first + range->second.bytes ? range->second.number : -1;
    const auto after = ranges_.lower_bound(address(data));
    return after != ranges_.end() && after->first < address(data) + bytes ? -1 : 0;
  }

  [[nodiscard]] std::string describe() const {  // what is left
    std::string text;
    for (const auto& [begin, range] : ranges_) {
      text += std::string(text.empty() ? "" : ", ") + (range.block ? "device memory of " : "registered memory of ") +
              std::to_string(range.bytes) + " bytes";
    }
    return text;
  }

 private:
  static constexpr std::align_val_t kAligned{256};  // as cudaMalloc's
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAligned); }
  };
  using Block = std::unique_ptr<std::byte[], Free>;
  struct Range {
    std::size_t bytes = 0;
    std::int64_t number = 0;
    Block block = {};  // none: the host's
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
  std::size_t used_bytes_ = 0;
  std::int64_t numbers_ = 0;
  Ranges ranges_;
};

}  // namespace terrace::test
