#include <terrace/core/cuda/math/cross_entropy.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template struct Losses<CudaLauncher>;

}  // namespace terrace::cuda::ops
