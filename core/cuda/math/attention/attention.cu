#include <terrace/core/cuda/math/attention/attention.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template struct AttentionForward<CudaLauncher>;

}  // namespace terrace::cuda::ops
