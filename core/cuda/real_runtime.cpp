#include <terrace/core/cuda/real_runtime.h>

#include <cuda_runtime_api.h>

#include <array>

#include <terrace/core/cuda/nvtx_profiler.h>

namespace terrace::cuda {
namespace {

static_assert(kCudaSuccess == cudaSuccess && kCudaOutOfMemory == cudaErrorMemoryAllocation);

class RealCudaRuntime final : public CudaRuntime {
 public:
  int device_count(int* count) override { return told(cudaGetDeviceCount(count)); }

  int properties(int device, CudaProperties* properties) override {
    cudaDeviceProp found{};
    std::array<char, 64> bus_id{};
    if (const auto code = cudaGetDeviceProperties(&found, device)) return told(code);
    if (const auto code = cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device)) return told(code);
    *properties = {.name = found.name,
                   .pci_bus_id = bus_id.data(),
                   .memory_bytes = found.totalGlobalMem,
                   .compute_major = found.major,
                   .compute_minor = found.minor,
                   .multiprocessors = found.multiProcessorCount,
                   .copy_engines = found.asyncEngineCount,
                   .shared_bytes = found.sharedMemPerBlockOptin,
                   .l2_bytes = static_cast<std::size_t>(found.l2CacheSize)};
    return kCudaSuccess;
  }

  int set_device(int device) override { return told(cudaSetDevice(device)); }
  int memory_info(std::size_t* free_bytes, std::size_t* total_bytes) override {
    return told(cudaMemGetInfo(free_bytes, total_bytes));
  }

  int allocate(void** data, std::size_t bytes) override { return told(cudaMalloc(data, bytes)); }
  int free(void* data) override { return told(cudaFree(data)); }
  int register_host(void* data, std::size_t bytes) override {
    return told(cudaHostRegister(data, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped));
  }
  int unregister_host(void* data) override { return told(cudaHostUnregister(data)); }

  int create_stream(CudaStreamHandle* stream) override {
    return told(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  }
  int destroy_stream(CudaStreamHandle stream) override { return told(cudaStreamDestroy(stream)); }
  int synchronize_stream(CudaStreamHandle stream) override { return told(cudaStreamSynchronize(stream)); }
  int copy_async(void* to, const void* from, std::size_t bytes, CudaStreamHandle stream) override {
    return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
  }
  int launch(const CudaLaunch& launch, CudaStreamHandle stream) override {
    void* arguments[] = {const_cast<void*>(launch.arguments)};
    const dim3 blocks(launch.blocks[0], launch.blocks[1], launch.blocks[2]);
    return told(cudaLaunchKernel(launch.kernel, blocks, dim3(launch.threads), arguments, launch.shared_bytes, stream));
  }
  int allow_shared_bytes(const void* kernel, std::size_t bytes) override {
    return told(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  }

  int create_event(CudaEventHandle* event) override {
    return told(cudaEventCreateWithFlags(event, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  int destroy_event(CudaEventHandle event) override { return told(cudaEventDestroy(event)); }
  int record_event(CudaEventHandle event, CudaStreamHandle stream) override { return told(cudaEventRecord(event, stream)); }
  int synchronize_event(CudaEventHandle event) override { return told(cudaEventSynchronize(event)); }
  int stream_wait_event(CudaStreamHandle stream, CudaEventHandle event) override {
    return told(cudaStreamWaitEvent(stream, event, 0));
  }

  CudaProfiler* profiler() override { return profiler_.get(); }

  std::string error_name(int code) override { return cudaGetErrorName(static_cast<cudaError_t>(code)); }
  std::string error_text(int code) override { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

 private:
  // CUDA also keeps the last error. It has been reported here, so it must not be attributed to a later call.
  static int told(cudaError_t code) {
    if (code != cudaSuccess) (void)cudaGetLastError();
    return static_cast<int>(code);
  }

  const std::unique_ptr<CudaProfiler> profiler_ = make_nvtx_profiler();
};

}  // namespace

std::unique_ptr<CudaRuntime> make_real_cuda_runtime() { return std::make_unique<RealCudaRuntime>(); }

}  // namespace terrace::cuda
