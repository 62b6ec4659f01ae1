#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/elementwise.h>

namespace terrace::cuda::ops {

template struct Elementwise<CudaLauncher>;

}  // namespace terrace::cuda::ops
