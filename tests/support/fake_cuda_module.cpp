// A terrace_cuda.so on the fake CUDA runtime, so that everything from a command line to a copy runs where there is no GPU.
// Misuse of CUDA ends the process.
#include <cstdio>
#include <cstdlib>

#include <terrace/core/cuda/device.h>
#include <terrace/core/math.h>
#include <terrace/optimizers/optimizer.h>
#include <terrace/tests/support/fake_cuda.h>

extern "C" __attribute__((visibility("default"))) terrace::Device* terrace_cuda_device(terrace::ThreadPool* pool,
                                                                                       const terrace::CudaOptions* options) {
  using namespace terrace;
  auto fake = std::make_shared<test::FakeCuda>(
      test::FakeCuda::Options{.memory_bytes = 3 * kGiB, .pageable_copies = true, .report = [](const std::string& text) {
                                std::fprintf(stderr, "misuse of CUDA: %s\n", text.c_str());
                                std::abort();
                              }});
  return make_device_on(std::move(fake), *pool, *options,
                        [](CudaRuntime&, Device& device) { return make_cpu_math(device.pool()); })
      .release();
}

// Its updates are host work of the stream, as the math is.
extern "C" __attribute__((visibility("default"))) terrace::Optimizer* terrace_cuda_optimizer(
    const char* name, const terrace::OptimizerSettings* settings) {
  return terrace::make_optimizer(name, *settings).release();
}
