#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/elementwise.h>

namespace terrace::cuda::ops {

template void add_bias(const CudaLauncher&, TensorView, TensorView, Accumulate);
template void scale(const CudaLauncher&, TensorView, TensorView, TensorView, Accumulate);
template void add(const CudaLauncher&, TensorView, TensorView, TensorView);
template void multiply(const CudaLauncher&, TensorView, TensorView, double);
template void soft_cap(const CudaLauncher&, TensorView, TensorView, double);
template void soft_cap_grad(const CudaLauncher&, TensorView, TensorView, TensorView, double);
template void convert(const CudaLauncher&, TensorView, TensorView, Accumulate);
template void columns(const CudaLauncher&, TensorView, std::int64_t, TensorView, std::int64_t, std::int64_t, Accumulate);
template void zero(const CudaLauncher&, TensorView);

}  // namespace terrace::cuda::ops
