// The entry of the CUDA module.

#include <terrace/core/cuda/cuda_math.h>
#include <terrace/core/cuda/device.h>
#include <terrace/core/cuda/real_runtime.h>
#include <terrace/core/device/cuda.h>

extern "C" __attribute__((visibility("default"))) terrace::Device* terrace_cuda_device(terrace::ThreadPool* pool,
                                                                                       const terrace::CudaOptions* options) {
  return terrace::cuda::make_device_on(terrace::cuda::make_real_cuda_runtime(), *pool, *options,
                                       [given = *options](terrace::cuda::CudaRuntime& runtime, terrace::Device& device) {
                                         return terrace::cuda::make_cuda_math(runtime, device, given);
                                       })
      .release();
}
