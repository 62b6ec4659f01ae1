#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/embed.h>

namespace terrace::cuda::ops {

template void embed(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, std::int64_t, std::int64_t);
template void embed_grad(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, std::int64_t, Accumulate);
template void ids_in_part(const CudaLauncher&, TensorView, TensorView, std::int64_t, std::int64_t);

}  // namespace terrace::cuda::ops
