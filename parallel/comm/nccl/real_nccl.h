// The real NCCL, and the launch of the kernel that adds contributions. In the CUDA module.
//
// Owner:   the process. Threads: any.
// Errors:  real_nccl(): Error(ErrorKind::missing) that says what is missing. launch_fold(): Error, as every launch.
#pragma once

#include <memory>

#include <terrace/parallel/comm/nccl/nccl_fold.h>
#include <terrace/parallel/comm/nccl/nccl_library.h>

namespace terrace::comm {

std::shared_ptr<NcclLibrary> real_nccl();

}  // namespace terrace::comm

namespace terrace::cuda {

void launch_fold(CudaStreamHandle stream, const FoldWork& work);

}  // namespace terrace::cuda
