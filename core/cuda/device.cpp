#include <terrace/core/cuda/device.h>

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/cuda/adopted/adopted_stream.h>
#include <terrace/core/cuda/cuda_error.h>
#include <terrace/core/cuda/memory.h>
#include <terrace/core/cuda/stream.h>
#include <terrace/core/machine/pci.h>

namespace terrace::cuda {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<CudaRuntime> runtime, ThreadPool& pool, const CudaOptions& options, const CudaMathFactory& math,
             const CudaPieces& pieces)
      : runtime_(std::move(runtime)),
        pool_(pool),
        index_(options.index),
        name_(fmt::format("cuda:{}", options.index)),
        pieces_(pieces),
        properties_(read_properties()),
        memory_(make_device_memory(runtime_, index_, name_)),
        limited_(make_limited_memory(*memory_, options.memory_limit_bytes)),
        host_memory_(make_registered_memory(runtime_, index_, name_, pool,
                                            make_pinned_memory(pool, host_numa_node(options), options.log), pieces)),
        math_(math(*runtime_, *this)) {}

  std::string name() const override { return name_; }
  std::unique_ptr<Stream> make_stream(std::string name) override {
    return std::make_unique<CudaStream>(*this, runtime_, index_, name, pieces_);
  }
  std::unique_ptr<Stream> adopt_stream(void* native, std::string name) override {
    return std::make_unique<AdoptedStream>(*this, runtime_, index_, name, static_cast<CudaStreamHandle>(native));
  }
  MemoryResource& memory() override { return *limited_; }
  std::shared_ptr<MemoryResource> host_memory() override { return host_memory_; }
  bool computes_on_host() const override { return false; }
  Math& math() override { return *math_; }
  ThreadPool& pool() override { return pool_; }
  [[nodiscard]] int index() const { return index_; }
  [[nodiscard]] int multiprocessors() const { return properties_.multiprocessors; }

 private:
  CudaProperties read_properties() {
    int count = 0;
    if (const int code = runtime_->device_count(&count)) throw CudaError(*runtime_, code, name_, "cudaGetDeviceCount");
    if (index_ < 0 || index_ >= count) {
      throw Error(
          fmt::format("{} does not exist: this process sees {} GPU{}, numbered from cuda:0\n  give one of them, or change "
                      "CUDA_VISIBLE_DEVICES",
                      name_, count, count == 1 ? "" : "s"),
          ErrorKind::missing);
    }
    CudaProperties properties;
    if (const int code = runtime_->properties(index_, &properties)) {
      throw CudaError(*runtime_, code, name_, "cudaGetDeviceProperties");
    }
    return properties;
  }

  [[nodiscard]] int host_numa_node(const CudaOptions& options) const {
    return options.host_numa_node >= 0 ? options.host_numa_node : machine::numa_node_of_pci(properties_.pci_bus_id);
  }

  const std::shared_ptr<CudaRuntime> runtime_;
  ThreadPool& pool_;
  const int index_;
  const std::string name_;
  const CudaPieces pieces_;
  const CudaProperties properties_;
  const std::unique_ptr<MemoryResource> memory_, limited_;
  const std::shared_ptr<MemoryResource> host_memory_;
  const std::unique_ptr<Math> math_;  // last: its constructor may take memory of the device
};

}  // namespace

std::unique_ptr<Device> make_device_on(std::shared_ptr<CudaRuntime> runtime, ThreadPool& pool, const CudaOptions& options,
                                       const CudaMathFactory& math, const CudaPieces& pieces) {
  runtime->log = options.log;
  return std::make_unique<CudaDevice>(std::move(runtime), pool, options, math, pieces);
}

namespace {

const CudaDevice& cuda_device(const Device& device) {
  if (const auto* const cuda = dynamic_cast<const CudaDevice*>(&device)) return *cuda;
  throw std::logic_error(device.name() + " is not a CUDA device");
}

}  // namespace

int cuda_index(const Device& device) { return cuda_device(device).index(); }
int cuda_multiprocessors(const Device& device) { return cuda_device(device).multiprocessors(); }

}  // namespace terrace::cuda
