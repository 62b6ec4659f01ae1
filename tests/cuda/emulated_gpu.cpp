#include <terrace/tests/cuda/emulated_gpu.h>

#include <gtest/gtest.h>

#include <random>

#include <terrace/core/cuda/attention_check.h>
#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/device.h>
#include <terrace/core/cuda/kernels/attention_warpgroup_launch.h>

#ifdef TERRACE_CUBLASLT
#include <terrace/core/cuda/math/cublas_products.h>
#include <terrace/tests/support/gpu/fake_cublaslt.h>
#endif
#include <terrace/core/cuda/math/kernel_math.h>
#include <terrace/tests/support/gpu/emulated_lane.h>
#include <terrace/tests/support/gpu/fake_cuda.h>

#include <terrace/tests/cuda/test_gpu.h>

namespace terrace::test {
namespace {

// Runs a kernel for the fake GPU. Every launch runs its threads in another order, because results must not depend on it.
template <class Kernel, class Args>
void run_emulated(const cuda::CudaLaunch& launch) {
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
    const cuda::CudaLaunch launch{.kernel = reinterpret_cast<const void*>(&run_emulated<Kernel, Args>),
                                  .blocks = {static_cast<unsigned>(shape.blocks[0]), static_cast<unsigned>(shape.blocks[1]),
                                             static_cast<unsigned>(shape.blocks[2])},
                                  .threads = static_cast<unsigned>(shape.threads),
                                  .shared_bytes = shape.shared_bytes,
                                  .arguments = &args,
                                  .argument_bytes = sizeof args};
    if (const int code = runtime.launch(launch, on)) throw cuda::CudaError(runtime, code, operation, "cudaLaunchKernel");
    if (launched != nullptr && *launched) (*launched)(operation);
  }
  [[nodiscard]] cuda::CudaStreamHandle stream() const { return on; }
  [[nodiscard]] std::size_t shared_bytes() const {
    cuda::CudaProperties gpu;
    EXPECT_EQ(runtime.properties(0, &gpu), cuda::kCudaSuccess);
    return gpu.shared_bytes;
  }
  cuda::CudaRuntime& runtime;
  const char* operation;
  cuda::CudaStreamHandle on;
  cuda::Workspace workspace;
  const std::function<void(const char*)>* launched = nullptr;
};

using Ops = cuda::ops::AllOps<Launcher>;

#ifdef TERRACE_CUBLASLT
// The GPU's products, with the fake cuBLASLt.
class Products {
 public:
  Products(cuda::CudaRuntime& runtime, ThreadPool& /*pool*/, const EmulatedGpu& gpu)
      : gpu_(dynamic_cast<FakeCuda&>(runtime)), products_(cuda::KnownAlgorithms(gpu.algorithms, gpu.machine_algorithms)) {}
  void matmul(Stream& stream, const cuda::Workspace& workspace, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
              Transpose tb, TensorView bias, Accumulate accumulate) {
    cuda::cuda_stream(stream).launch([=, this](cuda::CudaStreamHandle handle) {
      const fake_cublaslt::On on(gpu_);
      products_.run(handle, workspace, c, a, ta, b, tb, bias, accumulate);
    });
  }
  void matmul_float8(Stream& stream, const cuda::Workspace& workspace, MatrixView c, TensorView a, TensorView b,
                     TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate) {
    cuda::cuda_stream(stream).launch([=, this](cuda::CudaStreamHandle handle) {
      const fake_cublaslt::On on(gpu_);
      products_.run_float8(handle, workspace, c, a, b, a_scale, b_scale, bias, accumulate);
    });
  }
  [[nodiscard]] std::string algorithms() const { return products_.algorithms(); }

 private:
  FakeCuda& gpu_;
  cuda::CublasProducts products_;
};
#else
// Without the library's header, the CPU's products.
class Products {
 public:
  Products(cuda::CudaRuntime& /*runtime*/, ThreadPool& pool, const EmulatedGpu& /*gpu*/) : math_(make_cpu_math(pool)) {}
  void matmul(Stream& stream, const cuda::Workspace& /*workspace*/, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
              Transpose tb, TensorView bias, Accumulate accumulate) {
    math_->matmul(stream, c, a, ta, b, tb, bias, accumulate);
  }
  void matmul_float8(Stream& stream, const cuda::Workspace& /*workspace*/, MatrixView c, TensorView a, TensorView b,
                     TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate) {
    math_->matmul_float8(stream, c, a, b, a_scale, b_scale, bias, accumulate);
  }
  [[nodiscard]] static std::string algorithms() { return {}; }

 private:
  std::unique_ptr<Math> math_;
};
#endif

class Backend {
 public:
  Backend(cuda::CudaRuntime& runtime, Device& device, ThreadPool& pool, const EmulatedGpu& gpu)
      : runtime_(runtime),
        device_(device),
        launched_(gpu.launched),
        products_(runtime, pool, gpu),
        warpgroups_(gpu.warpgroups),
        issued_(gpu.issued_by_warpgroups),
        attention_({.no_warpgroups = gpu.warpgroups == Warpgroups::none ? "this GPU has no products of warpgroups" : "",
                    .forced = gpu.kernel,
                    .library = [] { return std::string("emulated"); }},
                   cuda::KnownAlgorithms(gpu.algorithms, gpu.machine_algorithms)),
        cudnn_(gpu.cudnn) {}

  Launcher launcher(const char* operation, cuda::CudaStreamHandle stream, const cuda::Workspace& workspace) {
    return {runtime_, operation, stream, workspace, &launched_};
  }
  void matmul(Stream& stream, const cuda::Workspace& workspace, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
              Transpose tb, TensorView bias, Accumulate accumulate) {
    products_.matmul(stream, workspace, c, a, ta, b, tb, bias, accumulate);
    if (launched_) launched_("matmul");
  }
  [[nodiscard]] static bool has_float8() { return true; }
  void matmul_float8(Stream& stream, const cuda::Workspace& workspace, MatrixView c, TensorView a, TensorView b,
                     TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate) {
    products_.matmul_float8(stream, workspace, c, a, b, a_scale, b_scale, bias, accumulate);
    if (launched_) launched_("matmul_float8");
  }
  void attention(const Launcher& launcher, const AttentionShape& shape, TensorView out, TensorView lse, TensorView qkv) {
    cuda::issue_chosen(attention_, place_of(launcher), shape, out, lse, qkv, by_warps(launcher), by_warpgroups(launcher));
  }
  void attention_grad(const Launcher& launcher, const AttentionShape& shape, TensorView dqkv, TensorView dout, TensorView out,
                      TensorView lse, TensorView qkv) {
    cuda::issue_chosen_grad(attention_, place_of(launcher), shape, dqkv, dout, out, lse, qkv, by_warps(launcher),
                            by_warpgroups(launcher));
  }
  cuda::cudnn::Attention& cudnn() { return cudnn_; }
  [[nodiscard]] std::string algorithms() const { return products_.algorithms() + attention_.algorithms() + cudnn_.lines(); }

 private:
  cuda::CheckPlace place_of(const Launcher& launcher) {
    return {runtime_, *device_.host_memory(), launcher.stream(), launcher.workspace};
  }
  static cuda::AttentionIssuers by_warps(const Launcher& launcher) {
    return {[&](const auto&... of) { Ops::attention(launcher, of...); },
            [&](const auto&... of) { Ops::attention_grad(launcher, of...); }};
  }
  // Runs issue() as the warpgroups' kernel, then applies the planted fault to the first 64 elements of `results`.
  template <class Issue>
  void as_warpgroups(const Launcher& launcher, bf16* results, Issue&& issue) {
    if (issued_ != nullptr) ++*issued_;
    if (warpgroups_ == Warpgroups::refused) throw Error("no kernel image is available for execution on the device");
    if (warpgroups_ == Warpgroups::unwritten) return;
    issue();
    const TensorView some{reinterpret_cast<std::byte*>(results), DType::bf16, {64}};
    if (warpgroups_ == Warpgroups::wrong) Ops::zero(launcher, some);
    if (warpgroups_ == Warpgroups::unsteady && ++calls_ % 2 == 0) Ops::multiply(launcher, some, some, 1 + 0x1p-7);
  }
  cuda::AttentionIssuers by_warpgroups(const Launcher& launcher) {
    return {[this, &launcher](const AttentionShape& s, TensorView out, TensorView lse, TensorView qkv) {
              as_warpgroups(launcher, out.as<bf16>(), [&] { cuda::attention_of_warpgroups(launcher, s, out, lse, qkv); });
            },
            [this, &launcher](const AttentionShape& s, TensorView dqkv, TensorView dout, TensorView out, TensorView lse,
                              TensorView qkv) {
              // The fault goes into the first dv, because the first dq is zero: the first query sees a single key.
              as_warpgroups(launcher, dqkv.as<bf16>() + (s.heads + s.kv_heads) * s.head_dim,
                            [&] { cuda::attention_grad_of_warpgroups(launcher, s, dqkv, dout, out, lse, qkv); });
            }};
  }

  cuda::CudaRuntime& runtime_;
  Device& device_;
  const std::function<void(const char*)> launched_;
  Products products_;
  const Warpgroups warpgroups_;
  std::atomic<int>* const issued_;
  int calls_ = 0;
  cuda::AttentionChoice attention_;
  cuda::cudnn::Attention cudnn_;
};

#ifdef TERRACE_CUBLASLT
// Launches the kernels that the products themselves need.
template <class Kernel, class Args>
void launch_of_thread(const char* operation, cuda::CudaStreamHandle stream, const cuda::LaunchShape& shape, const Args& args) {
  Launcher{fake_cublaslt::gpu_of_thread(), operation, stream, {}}.run<Kernel>(shape, args);
}
#endif

}  // namespace

std::unique_ptr<Device> make_emulated_gpu(ThreadPool& pool, const EmulatedGpu& gpu) {
  FakeCuda::Options options;
  options.pageable_copies = true;
  options.shared_bytes = gpu.shared_bytes;
  options.apart = gpu.cudnn.use == cuda::cudnn::Use::never;
  options.report = [](const std::string& complaint) { ADD_FAILURE() << complaint; };
  // All devices share one GPU, because a test's tensors may be in another device's memory.
  static std::weak_ptr<FakeCuda> first;
  options.same_gpu = first.lock();
  const auto made = std::make_shared<FakeCuda>(options);
  if (!options.same_gpu) first = made;
  return cuda::make_device_on(made, pool, {}, [&](cuda::CudaRuntime& runtime, Device& device) {
    return std::make_unique<cuda::KernelMath<Backend>>(device, runtime, device, pool, gpu);
  });
}

// Uses the warps' kernels, as most GPUs do; checking the others would take a second for every device of a test.
std::unique_ptr<Device> make_test_gpu(ThreadPool& pool) { return make_emulated_gpu(pool, {.kernel = "warps"}); }

void copy_of_test_gpu(Stream& stream, std::byte* to, const std::byte* from, std::size_t bytes) {
  stream.copy(to, from, bytes);
  stream.synchronize();
}

}  // namespace terrace::test

#ifdef TERRACE_CUBLASLT
namespace terrace::cuda {

template <class Kernel, class Args>
void CudaLauncher::run(const LaunchShape& shape, const Args& args) const {
  test::launch_of_thread<Kernel>(operation_, stream_, shape, args);
}

template struct ops::Elementwise<CudaLauncher>;

}  // namespace terrace::cuda
#endif
