// The math of a GPU: kernels launched on the stream, products by cuBLASLt.
#include <terrace/core/cuda/cuda_math.h>
#include <terrace/core/cuda/math/cublas_products.h>
#include <terrace/core/cuda/math/gpu_time.h>
#include <terrace/core/cuda/math/kernel_math.h>

namespace terrace {
namespace {

class CudaBackend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : products_(options.tf32, cuda::KnownAlgorithms(options.algorithms, options.machine_algorithms)),
        attention_({.use = cuda::cudnn::parse_use(options.attention),
                    .run = options.algorithms,
                    .machine = options.machine_algorithms,
                    .time_ns = cuda::time_on_gpu_ns}) {}

  static cuda::CudaLauncher launcher(const char* operation, CudaStreamHandle stream, const cuda::Workspace& workspace) {
    return {operation, stream, workspace};
  }
  void matmul(Stream& stream, const cuda::Workspace& workspace, TensorView c, TensorView a, Transpose ta, TensorView b,
              Transpose tb, TensorView bias, Accumulate accumulate) {
    cuda_stream(stream).launch(
        [=, this](CudaStreamHandle handle) { products_.run(handle, workspace, c, a, ta, b, tb, bias, accumulate); });
  }
  cuda::cudnn::Attention& attention() { return attention_; }
  [[nodiscard]] std::string algorithms() const { return products_.algorithms() + attention_.lines(); }

 private:
  cuda::CublasProducts products_;
  cuda::cudnn::Attention attention_;
};

}  // namespace

std::unique_ptr<Math> make_cuda_math(Device& device, const CudaOptions& options) {
  return std::make_unique<cuda::KernelMath<CudaBackend>>(device, options);
}

}  // namespace terrace
