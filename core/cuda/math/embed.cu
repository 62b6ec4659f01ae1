#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/embed.h>

namespace terrace::cuda::ops {

template struct Embeddings<CudaLauncher>;

}  // namespace terrace::cuda::ops
