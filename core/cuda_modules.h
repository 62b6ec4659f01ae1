// Which CUDA module runs with this machine's driver. One is built for each major version of CUDA, from the same sources:
// terrace_cuda13.so, and on request terrace_cuda12.so for drivers that do not support CUDA 13 yet. A driver runs what was built
// for its own major version or an older one.
//
// Threads: any. Errors: load_cuda_module() as load_module().
#pragma once

#include <span>
#include <string>

namespace terrace {

struct CudaModule {
  int major;           // of the CUDA that it is built with
  const char* driver;  // the oldest NVIDIA driver that runs it

  [[nodiscard]] std::string name() const { return "terrace_cuda" + std::to_string(major); }
};

// All that terrace can be built with, the newest first.
std::span<const CudaModule> cuda_modules();
// Of the modules that are here, the newest one that runs with a driver which supports `cuda_version` (12040 is 12.4). Null:
// none.
const CudaModule* cuda_module_for(int cuda_version);
// Whether there are modules, and none of them runs with such a driver; why, and how to mend it.
struct DriverRefusal {
  std::string why, mend;
};
DriverRefusal refuse_driver(int cuda_version);  // empty: nothing to refuse

// The version of CUDA that the driver supports; 0: there is no driver.
int cuda_version_of_driver(const std::string& driver = "libcuda.so.1");
// An entry of the module for this machine's driver.
void* load_cuda_module(const char* entry);

}  // namespace terrace
