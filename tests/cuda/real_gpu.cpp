#include <gtest/gtest.h>

#include <terrace/core/device/cuda.h>
#include <terrace/tests/support/program_device.h>

#include <terrace/tests/cuda/test_gpu.h>

namespace terrace::test {
namespace {

// Skips every test if there is no GPU.
class RealGpu final : public testing::Environment {
 public:
  void SetUp() override {
    const auto found = find_gpus();
    if (found.gpus.empty()) test_skip_reason = found.why_none + "; " + found.mend;
    test_has_gpu = !found.gpus.empty();
  }
};

[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new RealGpu);

}  // namespace

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool) {
  return test_skip_reason.empty() ? make_cuda_device(pool) : make_cpu_device(pool);
}

void copy_of_test_gpu(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  stream.copy(to, from, bytes);
  stream.synchronize();
}

}  // namespace terrace::test
