#include <terrace/core/cuda/math/attention/attention_block.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template struct AttentionBlocks<CudaLauncher>;

}  // namespace terrace::cuda::ops
