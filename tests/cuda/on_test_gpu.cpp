// Linked into a program of math tests, this file runs them on the test's GPU, with all tensors in device memory.
#include <gtest/gtest.h>

#include <terrace/tests/support/mirrored_bytes.h>
#include <terrace/tests/support/program_device.h>

#include <terrace/tests/cuda/test_gpu.h>

namespace terrace::test {
namespace {

[[maybe_unused]] const bool chosen = (make_test_device = &make_test_gpu, true);

class Mirror final : public testing::Environment {
 public:
  void SetUp() override {
    if (!test_skip_reason.empty()) return;
    device_ = make_test_gpu(pool_);
    stream_ = device_->make_stream("tensors");
    test_mirror = std::make_unique<TestMirror>(TestMirror{
        device_->memory(),
        [this](std::byte* to, const std::byte* from, std::size_t bytes) { copy_of_test_gpu(*stream_, to, from, bytes); }});
  }
  void TearDown() override {
    test_mirror.reset();
    stream_.reset();
    device_.reset();
  }

 private:
  ThreadPool pool_{1};
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};

// Must follow the environment of real_gpu.cpp, which detects a missing GPU: environments are set up in the order of their
// creation.
[[maybe_unused]] const auto* const environment = testing::AddGlobalTestEnvironment(new Mirror);

}  // namespace
}  // namespace terrace::test
