// The rest of a libcuda.so.1 without a GPU: symbols that cuDNN must find in a driver before it finalizes a plan for a device
// that is only described. They cannot be called: there is no device.
extern "C" {

#define TERRACE_NO_DEVICE(name) \
  int name() { return 100; /* CUDA_ERROR_NO_DEVICE */ }

TERRACE_NO_DEVICE(cuCtxGetCurrent)
TERRACE_NO_DEVICE(cuCtxGetDevice)
TERRACE_NO_DEVICE(cuCtxGetLimit)
TERRACE_NO_DEVICE(cuCtxPopCurrent)
TERRACE_NO_DEVICE(cuCtxPushCurrent)
TERRACE_NO_DEVICE(cuDevicePrimaryCtxRelease)
TERRACE_NO_DEVICE(cuDevicePrimaryCtxReset)
TERRACE_NO_DEVICE(cuFuncGetAttribute)
TERRACE_NO_DEVICE(cuFuncSetAttribute)
TERRACE_NO_DEVICE(cuKernelGetAttribute)
TERRACE_NO_DEVICE(cuKernelGetFunction)
TERRACE_NO_DEVICE(cuKernelSetAttribute)
TERRACE_NO_DEVICE(cuLaunchCooperativeKernel)
TERRACE_NO_DEVICE(cuLaunchKernel)
TERRACE_NO_DEVICE(cuLaunchKernelEx)
TERRACE_NO_DEVICE(cuLibraryGetKernel)
TERRACE_NO_DEVICE(cuLibraryLoadData)
TERRACE_NO_DEVICE(cuLibraryLoadFromFile)
TERRACE_NO_DEVICE(cuLibraryUnload)
TERRACE_NO_DEVICE(cuLinkAddData)
TERRACE_NO_DEVICE(cuLinkAddData_v2)
TERRACE_NO_DEVICE(cuLinkAddFile_v2)
TERRACE_NO_DEVICE(cuLinkComplete)
TERRACE_NO_DEVICE(cuLinkCreate)
TERRACE_NO_DEVICE(cuLinkCreate_v2)
TERRACE_NO_DEVICE(cuLinkDestroy)
TERRACE_NO_DEVICE(cuMemcpyDtoH_v2)
TERRACE_NO_DEVICE(cuModuleGetFunction)
TERRACE_NO_DEVICE(cuModuleGetGlobal_v2)
TERRACE_NO_DEVICE(cuModuleLoadData)
TERRACE_NO_DEVICE(cuModuleLoadDataEx)
TERRACE_NO_DEVICE(cuModuleLoadFatBinary)
TERRACE_NO_DEVICE(cuModuleUnload)
TERRACE_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
TERRACE_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
TERRACE_NO_DEVICE(cuStreamGetCtx)
TERRACE_NO_DEVICE(cuStreamSynchronize)
TERRACE_NO_DEVICE(cuTensorMapEncodeTiled)

}  // extern "C"
