#include <terrace/core/profile/gpu_rates.h>

#include <algorithm>
#include <array>

#include <terrace/core/machine/pci.h>

namespace terrace::profile {
namespace {

// Operations of a multiprocessor in a cycle: bf16 products summed in fp32, without sparsity, and fp32 and fp64. From NVIDIA's
// data sheets: peak rate ÷ (multiprocessors · boost clock) of the A100, RTX 3090, RTX 4090, H100, B200 and RTX 5090.
struct Architecture {
  int capability;  // 89: 8.9
  double bf16, fp32, fp64;
};
constexpr std::array<Architecture, 6> kArchitectures{{{80, 2048, 128, 128},
                                                      {86, 512, 256, 4},
                                                      {89, 512, 256, 4},
                                                      {90, 4096, 256, 256},
                                                      {100, 8192, 256, 128},
                                                      {120, 512, 256, 4}}};

// The newest one that is not newer than the GPU.
const Architecture& architecture_of(const GpuInfo& gpu) {
  constexpr int kUsual = 89;  // if nothing is known
  const int capability = gpu.compute_major == 0 ? kUsual : gpu.compute_major * 10 + gpu.compute_minor;
  const auto after = std::ranges::upper_bound(kArchitectures, capability, {}, &Architecture::capability);
  return after == kArchitectures.begin() ? kArchitectures.front() : *(after - 1);
}

// The shares that are assumed for large products, loops over memory and copies. An H100 reached 0.69 of its products' peak and
// 0.84 of PCIe 5; the share of memory is an estimate.
constexpr double kOfProducts = 0.7, kOfMemory = 0.85, kOfLink = 0.84;

}  // namespace

void assume_rates_of(const GpuInfo& gpu, MachineProfile& profile) {
  const auto known = [](double value, double otherwise) { return value > 0 ? value : otherwise; };
  const auto& per_cycle = architecture_of(gpu);
  const double cycles_s = known(gpu.multiprocessors, 64) * known(gpu.clock_hz, 1.7e9) * kOfProducts;
  profile.matmul_bf16 = per_cycle.bf16 * cycles_s;
  profile.matmul_fp32 = per_cycle.fp32 * cycles_s;
  profile.matmul_fp64 = per_cycle.fp64 * cycles_s;
  profile.device_stream = known(gpu.memory_bytes_s, 6e11) * kOfMemory;
  const double usual = machine::PciLink{.transfers_s = 16e9, .lanes = 16}.bytes_s();
  profile.upload = profile.download = known(gpu.link_bytes_s, usual) * kOfLink;
}

}  // namespace terrace::profile
