#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/norm.h>

namespace terrace::cuda::ops {

template struct Norms<CudaLauncher>;

}  // namespace terrace::cuda::ops
