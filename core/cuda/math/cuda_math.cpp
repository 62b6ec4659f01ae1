// The math of a GPU: kernels launched on the stream, products by cuBLASLt.
#include <terrace/core/cuda/cuda_math.h>

#include <string>

#include <fmt/format.h>

#include <terrace/core/cuda/attention_check.h>
#include <terrace/core/cuda/attention_choice.h>
#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/math/attention/warpgroup_attention.h>
#include <terrace/core/cuda/math/compiled_ops.h>
#include <terrace/core/cuda/math/cublas_products.h>
#include <terrace/core/cuda/math/gpu_time.h>
#include <terrace/core/cuda/math/kernel_math.h>

namespace terrace::cuda {
namespace {

CudaProperties properties_of(CudaRuntime& runtime, int index) {
  CudaProperties gpu;
  if (const int code = runtime.properties(index, &gpu))
    throw CudaError(runtime, code, fmt::format("cuda:{}", index), "cudaGetDeviceProperties");
  return gpu;
}

// Why this build or GPU cannot run attention by warpgroups; empty: it can.
std::string no_warpgroups(const CudaProperties& gpu) {
  if (!cuda::ops::has_warpgroup_attention()) return "terrace was built without code for compute capability 9.0";
  if (gpu.compute_major == 9 && gpu.compute_minor == 0) return {};
  return fmt::format("the GPU is of compute capability {}.{}, and only 9.0 has warpgroups' products", gpu.compute_major,
                     gpu.compute_minor);
}

class CudaBackend {
 public:
  CudaBackend(CudaRuntime& runtime, Device& device, const CudaOptions& options)
      : runtime_(runtime),
        device_(device),
        gpu_(properties_of(runtime, options.index)),
        products_(cuda::KnownAlgorithms(options.algorithms, options.machine_algorithms)),
        attention_({.no_warpgroups = no_warpgroups(gpu_),
                    .forced = options.attention_kernel,
                    .library = [this] { return products_.library(); },
                    .log = options.log},
                   cuda::KnownAlgorithms(options.algorithms, options.machine_algorithms)),
        cudnn_({.use = cuda::cudnn::parse_use(options.attention),
                .run = options.algorithms,
                .machine = options.machine_algorithms,
                .time_ns = cuda::time_on_gpu_ns}) {}

  cuda::CudaLauncher launcher(const char* operation, CudaStreamHandle stream, const cuda::Workspace& workspace) const {
    return {operation, stream, workspace, gpu_.shared_bytes};
  }
  void matmul(Stream& stream, const cuda::Workspace& workspace, MatrixView c, MatrixView a, Transpose ta, MatrixView b,
              Transpose tb, TensorView bias, Accumulate accumulate) {
    cuda_stream(stream).launch(
        [=, this](CudaStreamHandle handle) { products_.run(handle, workspace, c, a, ta, b, tb, bias, accumulate); });
  }
  [[nodiscard]] bool has_float8() const { return 10 * gpu_.compute_major + gpu_.compute_minor >= kLeastFloat8Capability; }
  void matmul_float8(Stream& stream, const cuda::Workspace& workspace, MatrixView c, TensorView a, TensorView b,
                     TensorView a_scale, TensorView b_scale, TensorView bias, Accumulate accumulate) {
    if (!has_float8())
      throw Error(fmt::format("products of 8 bits need a GPU of compute capability {}.{}, and this one has {}.{}",
                              kLeastFloat8Capability / 10, kLeastFloat8Capability % 10, gpu_.compute_major, gpu_.compute_minor),
                  ErrorKind::refused);
    cuda_stream(stream).launch([=, this](CudaStreamHandle handle) {
      products_.run_float8(handle, workspace, c, a, b, a_scale, b_scale, bias, accumulate);
    });
  }
  void attention(const cuda::CudaLauncher& launcher, const AttentionShape& shape, TensorView out, TensorView lse,
                 TensorView qkv) {
    cuda::issue_chosen(attention_, place_of(launcher), shape, out, lse, qkv, by_warps(launcher), by_warpgroups(launcher));
  }
  void attention_grad(const cuda::CudaLauncher& launcher, const AttentionShape& shape, TensorView dqkv, TensorView dout,
                      TensorView out, TensorView lse, TensorView qkv) {
    cuda::issue_chosen_grad(attention_, place_of(launcher), shape, dqkv, dout, out, lse, qkv, by_warps(launcher),
                            by_warpgroups(launcher));
  }
  // The line of the library comes first and applies to all others. If the library chose nothing, attention's lines are left
  // out.
  [[nodiscard]] std::string algorithms() const {
    auto text = products_.algorithms();
    if (!text.empty()) text += attention_.algorithms();
    return text + cudnn_.lines();
  }
  cuda::cudnn::Attention& cudnn() { return cudnn_; }

 private:
  cuda::CheckPlace place_of(const cuda::CudaLauncher& launcher) {
    return {runtime_, *device_.host_memory(), launcher.stream(), launcher.workspace};
  }
  static cuda::AttentionIssuers by_warps(const cuda::CudaLauncher& launcher) {
    return {[&](const auto&... of) { cuda::ops::AttentionForward<cuda::CudaLauncher>::attention(launcher, of...); },
            [&](const auto&... of) { cuda::ops::AttentionGradient<cuda::CudaLauncher>::attention_grad(launcher, of...); }};
  }
  static cuda::AttentionIssuers by_warpgroups(const cuda::CudaLauncher& launcher) {
    return {[&](const auto&... of) { cuda::ops::warpgroup_attention(launcher, of...); },
            [&](const auto&... of) { cuda::ops::warpgroup_attention_grad(launcher, of...); }};
  }

  CudaRuntime& runtime_;
  Device& device_;
  const CudaProperties gpu_;
  cuda::CublasProducts products_;
  cuda::AttentionChoice attention_;
  cuda::cudnn::Attention cudnn_;
};

}  // namespace

std::unique_ptr<Math> make_cuda_math(CudaRuntime& runtime, Device& device, const CudaOptions& options) {
  return std::make_unique<cuda::KernelMath<CudaBackend>>(device, runtime, device, options);
}

}  // namespace terrace::cuda
