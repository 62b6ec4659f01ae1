// What an operation of the CUDA math (ops.h) works with: a stream for kernel launches, and workspace. Operations are templates
// over it, so that tests run them, including their launch shapes, on the emulated lane (tests/cuda/test_gpu.h).
//
// Owner:   borrows all. The workspace serves one operation at a time, in stream order.
// Threads: the stream's issuing thread.
// Errors:  a launch that fails throws Error that names the operation.
#pragma once

#include <terrace/core/cuda/lane.h>
#include <terrace/core/cuda/runtime.h>
#include <terrace/core/cuda/workspace.h>

namespace terrace::cuda {

class CudaLauncher {
 public:
  // shared_bytes: that of CudaProperties; only attention needs it.
  CudaLauncher(const char* operation, CudaStreamHandle stream, const Workspace& place, std::size_t shared_bytes = 0)
      : workspace(place), operation_(operation), stream_(stream), shared_bytes_(shared_bytes) {}

  // Defined for .cu files, in cuda_launcher.h.
  template <class Kernel, class Args>
  void run(const LaunchShape& shape, const Args& args) const;
  [[nodiscard]] CudaStreamHandle stream() const { return stream_; }
  [[nodiscard]] std::size_t shared_bytes() const { return shared_bytes_; }

  Workspace workspace;

 private:
  const char* operation_;  // for errors
  CudaStreamHandle stream_;
  std::size_t shared_bytes_;
};

}  // namespace terrace::cuda
