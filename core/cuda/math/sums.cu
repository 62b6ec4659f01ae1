#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/sums.h>

namespace terrace::cuda::ops {

template void sum(const CudaLauncher&, TensorView, TensorView, Accumulate);
template void sum_of_squares(const CudaLauncher&, TensorView, TensorView, std::int64_t);

}  // namespace terrace::cuda::ops
