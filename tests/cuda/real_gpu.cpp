#include <gtest/gtest.h>

#include <terrace/core/cuda.h>
#include <terrace/tests/support/program_device.h>

#include "test_gpu.h"

namespace terrace::test {
namespace {

// Has every test skipped where there is no GPU; else keeps a device whose host memory all tensors are made in.
class RealGpu final : public testing::Environment {
 public:
  void SetUp() override {
    const auto found = find_gpus();
    if (found.gpus.empty()) {
      test_skip_reason = found.why_none + "; " + found.mend;
      return;
    }
    device_ = make_cuda_device(pool_);
    test_memory = device_->host_memory();
  }
  void TearDown() override {
    test_memory.reset();
    device_.reset();
  }

 private:
  ThreadPool pool_{2};
  std::unique_ptr<Device> device_;
};

[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new RealGpu);

}  // namespace

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool) {
  return test_skip_reason.empty() ? make_cuda_device(pool) : make_cpu_device(pool);
}

}  // namespace terrace::test
