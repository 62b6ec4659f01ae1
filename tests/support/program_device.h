// The device that all tests of a program run on: the CPU's, unless a file linked into the program sets another one before
// main(). So the same tests are programs for the CPU, for kernels run through the emulated lane, and for a GPU.
//
// Owner: the program. Threads: set before main(), then read by any.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/memory_resource.h>
#include <terrace/core/thread_pool.h>

namespace terrace::test {

inline std::unique_ptr<Device> (*make_test_device)(ThreadPool& pool) = &make_cpu_device;
// Why no test of the program can run; empty: they can. make_test_device must give a device all the same.
inline std::string test_skip_reason;
// Where tensors lie: ordinary memory, or what a program sets before its tests because its device reaches no other.
inline std::shared_ptr<MemoryResource> test_memory;

// 64-aligned bytes of it.
class TestBytes {
 public:
  TestBytes() = default;
  explicit TestBytes(std::size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    if (test_memory) {
      slab_ = std::make_shared<Slab>(test_memory->allocate(bytes));
      return;
    }
    lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  }
  TestBytes(const TestBytes& other) : TestBytes(other.bytes_) {
    if (bytes_ > 0) std::memcpy(data(), other.data(), bytes_);
  }
  TestBytes& operator=(TestBytes other) noexcept {
    std::swap(bytes_, other.bytes_), std::swap(lines_, other.lines_), std::swap(slab_, other.slab_);
    return *this;
  }
  TestBytes(TestBytes&&) noexcept = default;
  ~TestBytes() = default;
  [[nodiscard]] std::byte* data() const {
    if (slab_) return slab_->data();
    return lines_.empty() ? nullptr : const_cast<std::byte*>(lines_.front().bytes);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::size_t bytes_ = 0;
  std::vector<Line> lines_;
  std::shared_ptr<Slab> slab_;
};

}  // namespace terrace::test
