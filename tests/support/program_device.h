// The device for all tests of a program: the CPU's, unless a file linked into the program sets another one before main(). So
// the same tests are built as programs for the CPU, for kernels run through the emulated lane, and for a GPU.
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

inline std::unique_ptr<Device> (*make_test_device)(ThreadPool& pool) = [](ThreadPool& pool) { return make_cpu_device(pool); };
// The reason why the program's tests cannot run; empty: they can. make_test_device must return a device in either case.
inline std::string test_skip_reason;

// Whether a GPU computes, so that tests may be large.
inline bool test_has_gpu = false;

// Bytes aligned to 64.
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

// True if a library chose the order of summation in the products so far; then this order also depends on the operands'
// alignment.
inline bool products_by_library(const Math& math) { return math.algorithms().find("matmul ") != std::string::npos; }

}  // namespace terrace::test
