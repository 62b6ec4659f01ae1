// The devices of contract suites, by name: "cpu"; "fake_cuda", with a fake CUDA runtime and the CPU's math as host work of its
// streams; and "gpu", if there is one.
//
// Owner: the test. Threads: as Device. Errors: misuse of CUDA and leaks fail the test.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include <terrace/core/cuda/device.h>
#include <terrace/core/device/device.h>
#include <terrace/core/math/math.h>
#include <terrace/tests/support/gpu/fake_cuda.h>
#include <terrace/tests/support/gpu/launched_math.h>

namespace terrace::test {

inline FakeCuda::Options strict_fake() {
  return {.report = [](const std::string& text) { ADD_FAILURE() << text; }};
}

inline std::unique_ptr<Device> make_fake_cuda_device(std::shared_ptr<FakeCuda> fake, ThreadPool& pool,
                                                     const CudaOptions& options = {}, const cuda::CudaPieces& pieces = {}) {
  return cuda::make_device_on(
      std::move(fake), pool, options, [](cuda::CudaRuntime&, Device& device) { return make_cpu_math(device.pool()); }, pieces);
}
// The same, with math that runs on the streams as kernels do.
inline std::unique_ptr<Device> make_asynchronous_fake_device(std::shared_ptr<FakeCuda> fake, ThreadPool& pool,
                                                             const cuda::CudaPieces& pieces = {}) {
  return cuda::make_device_on(
      fake, pool, {},
      [fake](cuda::CudaRuntime&, Device& device) { return std::make_unique<LaunchedMath>(make_cpu_math(device.pool()), fake); },
      pieces);
}

// The reason why this device is unavailable; empty: it is available. A test that needs it is skipped with this reason.
inline std::string why_not_here(const std::string& kind) {
  if (kind != "gpu") return "";
  const auto found = find_gpus();
  return found.gpus.empty() ? found.why_none : cuda_module_trouble();
}

// `apart`: as in FakeCuda::Options.
inline std::unique_ptr<Device> make_test_device(const std::string& kind, ThreadPool& pool, std::uint64_t jitter_seed = 0,
                                                bool apart = true) {
  if (kind == "cpu") return make_cpu_device(pool);
  if (kind == "gpu") return make_cuda_device(pool);
  auto options = strict_fake();
  options.jitter_seed = jitter_seed;
  options.apart = apart;
  // Small pieces, so that even small copies have several.
  return make_fake_cuda_device(std::make_shared<FakeCuda>(options), pool, {},
                               {.copy_bytes = 64 * kKiB, .register_bytes = kMiB});
}

inline auto test_devices() { return testing::Values("cpu", "fake_cuda", "gpu"); }

}  // namespace terrace::test
