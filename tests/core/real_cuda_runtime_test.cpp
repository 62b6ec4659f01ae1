// The real CUDA runtime on a machine without a GPU: it reports that, and so does a device that uses it.
#include <terrace/core/cuda/real_runtime.h>

#include <gmock/gmock.h>

#include <cstdlib>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {

TEST(RealCudaRuntime, WithoutAGpuSaysSoInItsOwnWords) {
  if (!find_gpus().gpus.empty()) GTEST_SKIP() << "a GPU is here";
  const std::shared_ptr<cuda::CudaRuntime> runtime = cuda::make_real_cuda_runtime();
  int count = -1;
  const int code = runtime->device_count(&count);
  ASSERT_TRUE(code == 35 || code == 100) << code;  // 35: no driver, or a too old one; 100: no device
  EXPECT_EQ(count, -1) << "results are written with success only";
  EXPECT_EQ(runtime->error_name(code), code == 35 ? "cudaErrorInsufficientDriver" : "cudaErrorNoDevice");
  EXPECT_NE(runtime->error_text(code), "");
  EXPECT_EQ(runtime->error_name(700), "cudaErrorIllegalAddress");

  ThreadPool pool(1);
  EXPECT_THAT(error_of(ErrorKind::missing,
                       [&] {
                         (void)cuda::make_device_on(
                             runtime, pool, {}, [](cuda::CudaRuntime&, Device&) -> std::unique_ptr<Math> { return nullptr; });
                       }),
              testing::HasSubstr("cuda:0: cudaGetDeviceCount failed: " + runtime->error_name(code)));
}

TEST(RealCudaRuntime, HasNoProfilerWhereNoToolLooksOn) {
  if (std::getenv("NVTX_INJECTION64_PATH")) GTEST_SKIP() << "a tool is here";
  EXPECT_EQ(cuda::make_real_cuda_runtime()->profiler(), nullptr);
}

}  // namespace terrace::test
