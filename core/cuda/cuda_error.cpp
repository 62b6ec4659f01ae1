#include <terrace/core/cuda/cuda_error.h>

#include <fmt/format.h>

namespace terrace::cuda {
namespace {

std::string describe(CudaRuntime& runtime, int code, std::string_view on, std::string_view call) {
  return fmt::format("{}: {} failed: {} ({}): {}", on, call, runtime.error_name(code), code, runtime.error_text(code));
}

// A kernel failed: from then on, every CUDA call of the process fails with this error.
bool is_of_a_kernel(int code) { return code == 700 || code == 702 || (code >= 710 && code <= 720); }

// How to fix it.
std::string_view mend(int code) {
  if (is_of_a_kernel(code)) {
    return "\n  a kernel failed before this call: run the same command under compute-sanitizer to find it";
  }
  switch (code) {
    case kCudaOutOfMemory: return "\n  lower `device-memory`, or stop other processes on the GPU (nvidia-smi lists them)";
    case 35:
    case 36: return "\n  this driver is older than the CUDA that terrace was built with: install a newer driver";
    case 46: return "\n  another process uses the GPU in exclusive mode: stop it, or choose another GPU";
    case 209: return "\n  terrace was built for other GPUs: build it with CMAKE_CUDA_ARCHITECTURES for this one";
    case 214: return "\n  the GPU's memory is faulty: look at nvidia-smi -q -d ECC, and at the kernel log for Xid errors";
    default: return "";
  }
}

ErrorKind kind_of(int code) {
  const bool no_gpu_for_us = code == 35 || code == 36 || code == 46 || code == 100 || code == 209;
  return no_gpu_for_us ? ErrorKind::missing : ErrorKind::failed;
}

}  // namespace

CudaError::CudaError(CudaRuntime& runtime, int code, std::string_view on, std::string_view call, std::string_view advice)
    : Error(describe(runtime, code, on, call) + (advice.empty() ? std::string(mend(code)) : fmt::format("\n  {}", advice)),
            kind_of(code)),
      cuda_code_(code) {}

void warn_of_cuda(CudaRuntime& runtime, int code, std::string_view on, std::string_view call) noexcept try {
  if (is_of_a_kernel(code)) return;
  runtime.log.warn(describe(runtime, code, on, call));
} catch (const std::exception&) {
  runtime.log.warn("a CUDA call failed; there was no memory for a message that names it");
}

}  // namespace terrace::cuda
