// The launch itself. For .cu files.
#pragma once

#include <terrace/core/cuda/cuda_lane.h>
#include <terrace/core/cuda/math/launcher.h>

namespace terrace::cuda {

template <class Kernel, class Args>
void CudaLauncher::run(const LaunchShape& shape, const Args& args) const {
  try {
    cuda::launch<Kernel>(stream_, shape, args);
  } catch (const Error& e) {
    throw Error(std::string(operation_) + ": " + e.what(), e);
  }
}

}  // namespace terrace::cuda
