#include <terrace/core/cuda/math/cuda_launcher.h>
#include <terrace/core/cuda/math/routing.h>

namespace terrace::cuda::ops {

template void route(const CudaLauncher&, const Routing&, TensorView, TensorView, TensorView, TensorView, TensorView, TensorView,
                    TensorView);
template void route_grad(const CudaLauncher&, const Routing&, TensorView, TensorView, TensorView, TensorView, TensorView,
                         TensorView, double, double);
template void merge_reports(const CudaLauncher&, const Routing&, TensorView, TensorView);
template void dispatch(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView);
template void combine(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView, Accumulate);
template void gate_grad(const CudaLauncher&, TensorView, TensorView, TensorView, TensorView);

}  // namespace terrace::cuda::ops
