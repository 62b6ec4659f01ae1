#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/packing.h>

namespace terrace::cuda::ops {

template void pack_block8(const CudaLauncher&, TensorView, TensorView);
template void unpack_block8(const CudaLauncher&, TensorView, TensorView);
template void narrow_in_place(const CudaLauncher&, TensorView);

}  // namespace terrace::cuda::ops
