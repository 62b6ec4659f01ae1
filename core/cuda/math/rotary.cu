#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/rotary.h>

namespace terrace::cuda::ops {

template struct RotaryPositions<CudaLauncher>;

}  // namespace terrace::cuda::ops
