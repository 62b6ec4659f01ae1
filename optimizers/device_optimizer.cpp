// The optimizer for a device: the host's, or the CUDA module's.
#include <terrace/core/device/cuda_modules.h>
#include <terrace/core/device/device.h>
#include <terrace/optimizers/optimizer.h>

namespace terrace {

std::unique_ptr<Optimizer> make_optimizer_for(const Device& device, std::string_view name, const OptimizerSettings& settings) {
  if (device.computes_on_host()) return make_optimizer(name, settings);
  using Make = Optimizer* (*)(const char*, const OptimizerSettings*);
  const auto make = reinterpret_cast<Make>(device::load_cuda_module("terrace_cuda_optimizer"));
  return std::unique_ptr<Optimizer>(make(std::string(name).c_str(), &settings));
}

}  // namespace terrace
