#include "emulated_gpu.h"
#include "test_gpu.h"

#include <gtest/gtest.h>

#include <random>

#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/device.h>

#include <terrace/core/cuda/math/activation.h>
#include <terrace/core/cuda/math/attention.h>
#include <terrace/core/cuda/math/column_sums.h>
#include <terrace/core/cuda/math/cross_entropy.h>
#include <terrace/core/cuda/math/elementwise.h>
#include <terrace/core/cuda/math/embed.h>
#include <terrace/core/cuda/math/kernel_math.h>
#include <terrace/core/cuda/math/norm.h>
#include <terrace/core/cuda/math/packing.h>
#include <terrace/core/cuda/math/rotary.h>
#include <terrace/core/cuda/math/sums.h>
#include <terrace/tests/support/emulated_lane.h>
#include <terrace/tests/support/fake_cuda.h>

namespace terrace::test {
namespace {

// What the fake GPU calls. Every launch runs its threads in another order: results must not depend on it.
template <class Kernel, class Args>
void run_emulated(const CudaLaunch& launch) {
  thread_local std::minstd_rand schedules(std::random_device{}());
  const cuda::LaunchShape shape{.blocks = {launch.blocks[0], launch.blocks[1], launch.blocks[2]},
                                .threads = static_cast<int>(launch.threads),
                                .shared_bytes = launch.shared_bytes};
  emulate<Kernel>(shape, *static_cast<const Args*>(launch.arguments), schedules() % 8);
}

struct Launcher {
  template <class Kernel, class Args>
  void run(const cuda::LaunchShape& shape, const Args& args) const {
    static_assert(sizeof(Args) <= 4096);
    const CudaLaunch launch{.kernel = reinterpret_cast<const void*>(&run_emulated<Kernel, Args>),
                            .blocks = {static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]),
                                       static_cast<unsigned>(shape.blocks[2])},
                            .threads = static_cast<unsigned>(shape.threads),
                            .shared_bytes = shape.shared_bytes,
                            .arguments = &args,
                            .argument_bytes = sizeof args};
    if (const int code = runtime.launch(launch, stream)) throw CudaError(runtime, code, operation, "cudaLaunchKernel");
  }
  CudaRuntime& runtime;
  const char* operation;
  CudaStreamHandle stream;
  cuda::Workspace workspace;
};

class Backend {
 public:
  Backend(CudaRuntime& runtime, ThreadPool& pool, const cuda::cudnn::AttentionOptions& attention)
      : runtime_(runtime), products_(make_cpu_math(pool)), attention_(attention) {}

  Launcher launcher(const char* operation, CudaStreamHandle stream, const cuda::Workspace& workspace) {
    return {runtime_, operation, stream, workspace};
  }
  void matmul(Stream& stream, const cuda::Workspace&, TensorView c, TensorView a, Transpose ta, TensorView b, Transpose tb,
              TensorView bias, Accumulate accumulate) {
    products_->matmul(stream, c, a, ta, b, tb, bias, accumulate);
  }
  cuda::cudnn::Attention& attention() { return attention_; }
  [[nodiscard]] std::string algorithms() const { return attention_.lines(); }

 private:
  CudaRuntime& runtime_;
  std::unique_ptr<Math> products_;
  cuda::cudnn::Attention attention_;
};

}  // namespace

std::unique_ptr<Device> make_test_gpu(ThreadPool& pool) { return make_emulated_gpu(pool, {}); }

std::unique_ptr<Device> make_emulated_gpu(ThreadPool& pool, const cuda::cudnn::AttentionOptions& attention) {
  FakeCuda::Options options;
  options.report = [](const std::string& complaint) { ADD_FAILURE() << complaint; };
  return make_device_on(std::make_shared<FakeCuda>(options), pool, {}, [&](CudaRuntime& runtime, Device& device) {
    return std::make_unique<cuda::KernelMath<Backend>>(device, runtime, pool, attention);
  });
}

}  // namespace terrace::test
