#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/units.h>
#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/memory.h>

namespace terrace::cuda {
namespace {

class DeviceMemory final : public MemoryResource {
 public:
  DeviceMemory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on)
      : runtime_(std::move(runtime)), device_index_(device_index), on_(std::move(on)) {}

  Slab allocate(std::size_t asked_bytes) override {
    const auto bytes = round_up(std::max<std::size_t>(asked_bytes, 1), kPageBytes);
    if (bytes < asked_bytes) throw Error(fmt::format("{}: {} bytes cannot be allocated", on_, asked_bytes));
    if (const int code = runtime_->set_device(device_index_)) throw CudaError(*runtime_, code, on_, "cudaSetDevice");
    void* data = nullptr;
    if (const int code = runtime_->allocate(&data, bytes)) {
      throw CudaError(*runtime_, code, on_,
                      fmt::format("cudaMalloc of {} ({} bytes{})", format_bytes(bytes), bytes, describe_free()));
    }
    return {this, static_cast<std::byte*>(data), bytes};
  }

 private:
  void release(std::byte* data, std::size_t /*bytes*/) noexcept override {
    if (const int code = runtime_->set_device(device_index_)) warn_of_cuda(*runtime_, code, on_, "cudaSetDevice");
    if (const int code = runtime_->free(data)) warn_of_cuda(*runtime_, code, on_, "cudaFree");
  }

  std::string describe_free() {
    std::size_t free_bytes = 0, total_bytes = 0;
    if (runtime_->memory_info(&free_bytes, &total_bytes) != kCudaSuccess) return "";
    return fmt::format("; {} of {} are free", format_bytes(free_bytes), format_bytes(total_bytes));
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  const int device_index_;
  const std::string on_;
};

}  // namespace

std::unique_ptr<MemoryResource> make_device_memory(std::shared_ptr<CudaRuntime> runtime, int device_index, std::string on) {
  return std::make_unique<DeviceMemory>(std::move(runtime), device_index, std::move(on));
}

}  // namespace terrace::cuda
