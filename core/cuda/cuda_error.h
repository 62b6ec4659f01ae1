// A call of the CUDA runtime that failed, as the user sees it: on what, which call, CUDA's name and text, how to mend it.
//
// Owner: a value. Threads: any.
#pragma once

#include <string>
#include <string_view>

#include <terrace/core/cuda/runtime.h>
#include <terrace/core/error.h>

namespace terrace {

class CudaError : public Error {
 public:
  // `on`: "cuda:0, stream \"upload\""; `call`: "cudaMemcpyAsync of 4096 bytes".
  // `advice`: instead of what is usual for the code.
  CudaError(CudaRuntime& runtime, int code, std::string_view on, std::string_view call, std::string_view advice = {});
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  int code_;
};

// For places that cannot throw: one line on standard error. Not for the error of a kernel, which its stream reports and every
// call after it repeats.
void warn_of_cuda(CudaRuntime& runtime, int code, std::string_view on, std::string_view call) noexcept;

}  // namespace terrace
