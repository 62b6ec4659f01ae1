#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/rotary.h>

namespace terrace::cuda::ops {

template void rotary(const CudaLauncher&, TensorView, std::int64_t, std::int64_t, std::int64_t, const Rotary&, bool);

}  // namespace terrace::cuda::ops
