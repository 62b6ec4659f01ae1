// The CUDA device's module, loaded on first use.
#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/device/cuda.h>
#include <terrace/core/device/cuda_modules.h>

namespace terrace {
namespace {

using Make = Device* (*)(ThreadPool*, const CudaOptions*);

Make load() { return reinterpret_cast<Make>(device::load_cuda_module("terrace_cuda_device")); }

}  // namespace

std::string cuda_module_trouble() try {
  load();
  return "";
} catch (const Error& error) {
  return error.what();
}

std::unique_ptr<Device> make_cuda_device(ThreadPool& pool, const CudaOptions& options) {
  const auto found = find_gpus();
  if (found.gpus.empty()) {
    throw Error(fmt::format("no CUDA device: {}\n  {}, or give `device` cpu", found.why_none, found.mend), ErrorKind::missing);
  }
  static const Make make = load();
  return std::unique_ptr<Device>(make(&pool, &options));
}

}  // namespace terrace
