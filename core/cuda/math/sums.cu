#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/sums.h>

namespace terrace::cuda::ops {

template void sum(const CudaLauncher&, TensorView, TensorView, Accumulate);
template void sum_of_squares(const CudaLauncher&, TensorView, TensorView, std::int64_t);
template void row_products(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, double, double);

}  // namespace terrace::cuda::ops
