// Lists the GPUs, by calls of the driver.
#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <cstdlib>

#include <fmt/format.h>

#include <terrace/core/device/cuda.h>
#include <terrace/core/device/cuda_modules.h>
#include <terrace/core/machine/pci.h>

namespace terrace {
namespace {

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE
// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR, MULTIPROCESSOR_COUNT, CLOCK_RATE (kHz), MEMORY_CLOCK_RATE (kHz; two
// transfers a cycle), GLOBAL_MEMORY_BUS_WIDTH (bits)
constexpr int kMajor = 75, kMinor = 76, kMultiprocessors = 16, kClock = 13, kMemoryClock = 36, kBusWidth = 37;

// The few calls of the driver (cuda.h) that are needed to list the GPUs. The driver stays loaded, because it does not support
// unloading.
class Driver {
 public:
  explicit Driver(const std::string& file) : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (const char* const error = handle_ ? nullptr : dlerror()) trouble_ = error;
  }
  [[nodiscard]] bool loaded() const { return handle_ != nullptr; }
  [[nodiscard]] const std::string& trouble() const { return trouble_; }

  // Returns CUDA's code, or an error if this driver does not have the call.
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(handle_, name));
    return function ? function(arguments...) : -1;
  }
  [[nodiscard]] std::string describe(int code) const {
    const char *name = nullptr, *text = nullptr;
    call("cuGetErrorName", code, &name);
    call("cuGetErrorString", code, &text);
    return fmt::format("{} ({}): {}", name ? name : "error", code, text ? text : "not known to this driver");
  }

 private:
  void* handle_;
  std::string trouble_;
};

GpuInfo look_at(const Driver& driver, int index) {
  GpuInfo gpu{.index = index};
  std::array<char, 256> text{};
  std::size_t bytes = 0;
  int device = 0;
  driver.call("cuDeviceGet", &device, index);
  if (driver.call("cuDeviceGetName", text.data(), static_cast<int>(text.size()), device) == 0) gpu.name = text.data();
  if (driver.call("cuDeviceTotalMem_v2", &bytes, device) == 0) gpu.memory_bytes = bytes;
  if (driver.call("cuDeviceGetPCIBusId", text.data(), static_cast<int>(text.size()), device) == 0) {
    gpu.pci_bus_id = text.data();
    gpu.numa_node = machine::numa_node_of_pci(gpu.pci_bus_id);
    gpu.link_bytes_s = machine::link_of_pci(gpu.pci_bus_id).bytes_s();
  }
  if (std::array<unsigned char, 16> uuid{}; driver.call("cuDeviceGetUuid_v2", &uuid, device) == 0)
    gpu.uuid = fmt::format("{:02x}", fmt::join(uuid, ""));
  driver.call("cuDeviceGetAttribute", &gpu.compute_major, kMajor, device);
  driver.call("cuDeviceGetAttribute", &gpu.compute_minor, kMinor, device);
  driver.call("cuDeviceGetAttribute", &gpu.multiprocessors, kMultiprocessors, device);
  int clock_khz = 0, memory_khz = 0, bus_bits = 0;
  driver.call("cuDeviceGetAttribute", &clock_khz, kClock, device);
  driver.call("cuDeviceGetAttribute", &memory_khz, kMemoryClock, device);
  driver.call("cuDeviceGetAttribute", &bus_bits, kBusWidth, device);
  gpu.clock_hz = clock_khz * 1e3;
  gpu.memory_bytes_s = 2 * memory_khz * 1e3 * bus_bits / 8;
  return gpu;
}

}  // namespace

void prepare_cuda(bool several_gpus) {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // the maximum; the default is 8
  if (!several_gpus) return;
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  setenv("NCCL_RUNTIME_CONNECT", "0", 0);  // a communicator connects when it is made
}

std::optional<std::uint64_t> free_gpu_bytes(int index, const std::string& driver_file) {
  prepare_cuda(false);
  const Driver driver(driver_file);
  int device = 0;
  void *context = nullptr, *popped = nullptr;
  std::size_t free = 0, total = 0;
  if (!driver.loaded() || driver.call("cuInit", 0U) != 0 || driver.call("cuDeviceGet", &device, index) != 0 ||
      driver.call("cuDevicePrimaryCtxRetain", &context, device) != 0)
    return std::nullopt;
  int code = driver.call("cuCtxPushCurrent_v2", context);
  if (code == 0) {
    code = driver.call("cuMemGetInfo_v2", &free, &total);
    driver.call("cuCtxPopCurrent_v2", &popped);
  }
  driver.call("cuDevicePrimaryCtxRelease_v2", device);
  return code == 0 ? std::optional(std::uint64_t{free}) : std::nullopt;
}

int device::cuda_version_of_driver(const std::string& driver_file) {
  const Driver driver(driver_file);
  int version = 0;
  if (driver.loaded()) driver.call("cuDriverGetVersion", &version);
  return version;
}

GpuSearch find_gpus(const std::string& driver_file) {
  prepare_cuda(false);
  const Driver driver(driver_file);
  if (!driver.loaded()) {
    return {{}, fmt::format("there is no NVIDIA driver ({})", driver.trouble()), "install the NVIDIA driver"};
  }
  int version = 0, count = 0;
  driver.call("cuDriverGetVersion", &version);
  if (const auto refusal = device::refuse_driver(version); !refusal.why.empty()) return {{}, refusal.why, refusal.mend};
  int code = driver.call("cuInit", 0U);
  if (code == 0) code = driver.call("cuDeviceGetCount", &count);
  if (code == kNoDevice || (code == 0 && count == 0)) {
    return {{}, "the driver is installed, but reports no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"};
  }
  if (code != 0) {
    return {{}, fmt::format("the driver does not work: {}", driver.describe(code)), "check nvidia-smi and the kernel log"};
  }
  GpuSearch found{.cuda_version = version};
  for (int i = 0; i < count; ++i) found.gpus.push_back(look_at(driver, i));
  return found;
}

}  // namespace terrace
