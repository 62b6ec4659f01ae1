// A failed call of the CUDA runtime, as the user sees it: on what, which call, CUDA's name and text, and how to fix it.
//
// Owner: a value. Threads: any.
#pragma once

#include <string>
#include <string_view>

#include <terrace/core/base/error.h>
#include <terrace/core/cuda/runtime.h>

namespace terrace::cuda {

class CudaError : public Error {
 public:
  // `on`: "cuda:0, stream \"upload\""; `call`: "cudaMemcpyAsync of 4096 bytes".
  // `advice`: replaces the usual advice for the code.
  CudaError(CudaRuntime& runtime, int code, std::string_view on, std::string_view call, std::string_view advice = {});
  [[nodiscard]] int cuda_code() const noexcept { return cuda_code_; }

 private:
  int cuda_code_;
};

// For places that cannot throw: one warning in the runtime's log. Nothing for the error of a kernel: its stream reports it, and
// every later call repeats it.
void warn_of_cuda(CudaRuntime& runtime, int code, std::string_view on, std::string_view call) noexcept;

}  // namespace terrace::cuda
