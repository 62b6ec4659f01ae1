#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/rotary.h>

namespace terrace::cuda::ops {

template void rotary(const CudaLauncher&, TensorView, std::int64_t, std::int64_t, std::int64_t, double, bool);

}  // namespace terrace::cuda::ops
