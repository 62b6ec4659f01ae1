#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/score_rows.h>

namespace terrace::cuda::ops {

template struct RowSoftmax<CudaLauncher>;

}  // namespace terrace::cuda::ops
