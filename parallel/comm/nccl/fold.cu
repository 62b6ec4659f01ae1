#include <terrace/parallel/comm/nccl/real_nccl.h>

#include <terrace/core/cuda/cuda_lane.h>

namespace terrace::cuda {
namespace {

struct FoldLauncher {
  template <class Kernel, class Args>
  void run(const LaunchShape& shape, const Args& args) const {
    launch<Kernel>(stream, shape, args);
  }
  CudaStreamHandle stream;
};

}  // namespace

void launch_fold(CudaStreamHandle stream, const FoldWork& work) { fold_ranks(FoldLauncher{stream}, work); }

}  // namespace terrace::cuda
