// The optimizers' entry of the CUDA module.
#include <terrace/optimizers/cuda/cuda_optimizer.h>
#include <terrace/optimizers/cuda/update.h>

extern "C" __attribute__((visibility("default"))) terrace::Optimizer* terrace_cuda_optimizer(
    const char* name, const terrace::OptimizerSettings* settings) {
  return terrace::rules::make_cuda_optimizer(name, *settings, terrace::cuda::launch_update, terrace::cuda::enqueue_layer_update)
      .release();
}
