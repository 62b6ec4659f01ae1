#include <terrace/core/cuda/math/column_sums.h>
#include <terrace/core/cuda/math/cuda_launcher.h>

namespace terrace::cuda::ops {

template struct ColumnSums<CudaLauncher>;

}  // namespace terrace::cuda::ops
