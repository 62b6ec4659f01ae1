#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/packing.h>

namespace terrace::cuda::ops {

template struct Packing<CudaLauncher>;

}  // namespace terrace::cuda::ops
