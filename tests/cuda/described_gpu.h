// A description of a GPU for cuDNN, which proposes and finalizes plans for it without the GPU. If there is no driver, the fake
// one is used; it reports that there is no device, and plans need none.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include <terrace/core/cuda/cudnn/plan.h>

namespace terrace::test {

// Called once per process, before cuDNN first looks for a driver.
inline void have_a_driver() {
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return;
  ::setenv("TERRACE_FAKE_DRIVER_ERROR", "100", 1);  // CUDA_ERROR_NO_DEVICE
  ::setenv("TERRACE_FAKE_GPUS", "0", 1);            // so that cuDNN compiles kernels but loads none
  ::dlopen(TERRACE_DRIVER_WITHOUT_GPU, RTLD_NOW | RTLD_GLOBAL);
}

inline std::string h100_json() {
  return R"({"deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"deviceName":"a described GPU","pciDeviceId":0,)"
         R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"multiProcessorCount":132,"warpSize":32,)"
         R"("regsPerBlock":65536,"maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
         R"("maxThreadsPerSM":2048,"maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,)"
         R"("reservedSharedMemoryPerBlock":1024,"totalGlobalMem":85029158912,"l2CacheSize":52428800,)"
         R"("smClockRateKHz":1980000,"memClockRateKHz":2619000,"isTccDriver":0,"supportCoopLaunch":1})";
}

}  // namespace terrace::test
