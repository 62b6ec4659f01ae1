// The first product of a process that cannot allocate more memory must give an error that names the limit, not a signal.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/math/math.h>

namespace terrace::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kHasOwnMemory = false;
#else
constexpr bool kHasOwnMemory = true;
#endif

std::uint64_t data_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::uint64_t kib = 0; word == "VmData:" && status >> kib) return kib * kKiB;
  return 0;
}

// Exits with code 1 and the message if the product explains its failure.
[[noreturn]] void multiply_without_room() {
  ThreadPool pool(1);
  const auto device = make_cpu_device(pool);
  const auto stream = device->make_stream("test");
  std::vector<float> numbers(3 * 64 * 64, 1.0F);
  const auto matrix = [&](std::size_t i) {
    return TensorView{reinterpret_cast<std::byte*>(&numbers[i * 64 * 64]), DType::fp32, {64, 64}};
  };
  const auto most = data_bytes() + kMiB;
  const rlimit limit{most, most};
  if (::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(9);
  try {
    device->math().matmul(*stream, matrix(0), matrix(1), Transpose::no, matrix(2), Transpose::no);
    stream->synchronize();
  } catch (const Error& error) {
    std::fputs(error.what(), stderr);
    ::_exit(1);
  }
  ::_exit(0);
}

TEST(RoomForCode, IsAskedForBeforeTheFirstProduct) {
  if (!kHasOwnMemory) GTEST_SKIP() << "a sanitizer takes memory of its own";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in a process that has not computed a product yet
  EXPECT_EXIT(multiply_without_room(), testing::ExitedWithCode(1),
              "no memory is left for the code of matrix products.*ulimit -d");
}

}  // namespace
}  // namespace terrace::test
