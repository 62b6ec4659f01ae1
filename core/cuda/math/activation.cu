#include <terrace/core/cuda/math/activation.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template struct Activations<CudaLauncher>;

}  // namespace terrace::cuda::ops
