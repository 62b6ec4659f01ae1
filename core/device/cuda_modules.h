// Which CUDA module runs with this machine's driver. The build makes one module per major version of CUDA, from the same
// sources: terrace_cuda13.so, and on request terrace_cuda12.so for drivers that do not support CUDA 13 yet. A driver runs
// modules built for its own major version or an older one.
//
// Threads: any. Errors: load_cuda_module() as load_module().
#pragma once

#include <span>
#include <string>

namespace terrace::device {

struct CudaModule {
  int major;           // version of CUDA that it is built with
  const char* driver;  // the oldest NVIDIA driver that runs it

  [[nodiscard]] std::string name() const { return "terrace_cuda" + std::to_string(major); }
};

// All modules that terrace can be built with, the newest first.
std::span<const CudaModule> cuda_modules();
// The newest installed module that runs with a driver which supports `cuda_version` (12040 is 12.4). Null if there is none.
const CudaModule* cuda_module_for(int cuda_version);
// If modules are installed and none of them runs with such a driver: why not, and how to fix it.
struct DriverRefusal {
  std::string why, mend;
};
DriverRefusal refuse_driver(int cuda_version);  // empty: nothing to refuse

// The version of CUDA that the driver supports; 0: no driver.
int cuda_version_of_driver(const std::string& driver = "libcuda.so.1");
// Returns an entry point of the module for this machine's driver.
void* load_cuda_module(const char* entry);

}  // namespace terrace::device
