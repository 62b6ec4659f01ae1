// NCCL's entry of the CUDA module.
#include <terrace/core/cuda/device.h>
#include <terrace/parallel/comm/nccl/nccl_transport.h>
#include <terrace/parallel/comm/nccl/real_nccl.h>

extern "C" __attribute__((visibility("default"))) terrace::comm::Transport* terrace_nccl_transport(
    terrace::Device* device, std::shared_ptr<terrace::comm::Transport>* host,
    std::shared_ptr<terrace::comm::Transport>* letters) {
  return std::make_unique<terrace::comm::NcclTransport>(
             *host, *letters,
             terrace::comm::NcclParts{.device = device,
                                      .device_index = terrace::cuda::cuda_index(*device),
                                      .library = terrace::comm::real_nccl(),
                                      .fold = terrace::cuda::launch_fold,
                                      .multiprocessors = terrace::cuda::cuda_multiprocessors(*device)})
      .release();
}
