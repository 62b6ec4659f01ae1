#include <terrace/core/device/cuda_modules.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include <terrace/core/base/module.h>

namespace terrace::device {
namespace {

// The oldest driver for each major version is from the release notes of the CUDA toolkit.
constexpr std::array kModules{CudaModule{13, "580"}, CudaModule{12, "525"}};

bool is_here(const CudaModule& module) { return base::has_module(module.name()); }

}  // namespace

std::span<const CudaModule> cuda_modules() { return kModules; }

const CudaModule* cuda_module_for(int cuda_version) {
  const auto runs = [=](const CudaModule& module) { return module.major <= cuda_version / 1000 && is_here(module); };
  const auto* const found = std::ranges::find_if(kModules, runs);
  return found == kModules.end() ? nullptr : found;
}

DriverRefusal refuse_driver(int cuda_version) {
  std::vector<std::string> here;
  const CudaModule* oldest = nullptr;
  for (const auto& module : kModules) {
    if (!is_here(module)) continue;
    here.push_back(fmt::format("CUDA {} (driver {} or newer)", module.major, module.driver));
    oldest = &module;
  }
  if (here.empty() || cuda_module_for(cuda_version)) return {};
  DriverRefusal refusal{
      .why = fmt::format("the driver version is insufficient (error 35): it supports CUDA {}.{}, and terrace was built for {}",
                         cuda_version / 1000, cuda_version % 1000 / 10, fmt::join(here, " and ")),
      .mend = fmt::format("install NVIDIA driver {} or newer", oldest->driver)};
  for (const auto& module : kModules)
    if (module.major < oldest->major && module.major <= cuda_version / 1000)
      refusal.mend += fmt::format(", or build terrace with a toolkit of CUDA {0} (TERRACE_CUDA{0}_TOOLKIT)", module.major);
  return refusal;
}

void* load_cuda_module(const char* entry) {
  const int version = cuda_version_of_driver();
  // Without a driver, only reports get here, and they need any installed module. If none is, load_module() says where it
  // searched.
  const auto* module = cuda_module_for(version == 0 ? std::numeric_limits<int>::max() : version);
  if (!module) module = &kModules.front();
  return base::load_module(
      module->name(), entry,
      "build terrace on a machine with the CUDA toolkit (nvcc), and put CUDA's libraries where the loader finds them");
}

}  // namespace terrace::device
