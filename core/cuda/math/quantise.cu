#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/quantise.h>

namespace terrace::cuda::ops {

template struct Quantising<CudaLauncher>;

}  // namespace terrace::cuda::ops
