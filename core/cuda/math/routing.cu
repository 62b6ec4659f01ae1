#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/routing.h>

namespace terrace::cuda::ops {

template struct Experts<CudaLauncher>;

}  // namespace terrace::cuda::ops
