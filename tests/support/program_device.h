// The device that all tests of a program run on: the CPU's, unless a file linked into the program sets another one before
// main(). So the same tests are programs for the CPU, for kernels run through the emulated lane, and for a GPU.
//
// Owner: the program. Threads: set before main(), then read by any.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/math.h>

namespace terrace::test {

inline std::unique_ptr<Device> (*make_test_device)(ThreadPool& pool) = &make_cpu_device;
// Why no test of the program can run; empty: they can. make_test_device must give a device all the same.
inline std::string test_skip_reason;

// 64-aligned bytes.
class TestBytes {
 public:
  TestBytes() = default;
  explicit TestBytes(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)) {}
  [[nodiscard]] std::byte* data() const { return lines_.empty() ? nullptr : const_cast<std::byte*>(lines_.front().bytes); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> lines_;
};

// Whether a library chose how the products so far were summed. Then operands' alignment decides with it.
inline bool products_by_library(const Math& math) { return math.algorithms().find("matmul ") != std::string::npos; }

}  // namespace terrace::test
