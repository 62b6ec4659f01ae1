// The operations of ops.h for CudaLauncher, compiled in the .cu files: for other files of the module that call them.
#pragma once

#include <terrace/core/cuda/math/launcher.h>
#include <terrace/core/cuda/math/ops.h>

namespace terrace::cuda::ops {

extern template struct Activations<CudaLauncher>;
extern template struct AttentionForward<CudaLauncher>;
extern template struct AttentionGradient<CudaLauncher>;
extern template struct AttentionBlocks<CudaLauncher>;
extern template struct ColumnSums<CudaLauncher>;
extern template struct Losses<CudaLauncher>;
extern template struct Elementwise<CudaLauncher>;
extern template struct Embeddings<CudaLauncher>;
extern template struct Norms<CudaLauncher>;
extern template struct Packing<CudaLauncher>;
extern template struct Quantising<CudaLauncher>;
extern template struct RotaryPositions<CudaLauncher>;
extern template struct Experts<CudaLauncher>;
extern template struct RowSoftmax<CudaLauncher>;
extern template struct Sums<CudaLauncher>;

}  // namespace terrace::cuda::ops
