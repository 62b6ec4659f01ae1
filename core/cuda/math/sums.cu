#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/sums.h>

namespace terrace::cuda::ops {

template struct Sums<CudaLauncher>;

}  // namespace terrace::cuda::ops
