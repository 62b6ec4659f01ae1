// GPUs: which there are, and a device on one. All that needs CUDA is in a module that is loaded on first use, so that a program
// starts small, and also where there is neither a GPU nor a driver.
//
// Owner:   the caller; the pool is borrowed and must outlive the device.
// Threads: any.
// Errors:  Error(Exit::hardware_missing) that says what is missing and how to get it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <terrace/core/device.h>
#include <terrace/core/units.h>

namespace terrace {

struct GpuInfo {
  int index = 0;  // "cuda:0"
  std::string name = {};
  std::string pci_bus_id = {};
  int numa_node = -1;  // of the host's memory beside it; -1: not known
  std::uint64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
};

struct GpuSearch {
  std::vector<GpuInfo> gpus = {};
  std::string why_none = {};  // when there are none: one line, and how to mend it
  std::string mend = {};
};

// Asks the driver only, so that no CUDA library is mapped where there is no GPU. Tests give another driver.
GpuSearch find_gpus(const std::string& driver = "libcuda.so.1");

// Of device memory beside a stream's workspace, where cuDNN may make attention: four groups of four heads of 4,096 positions.
// How calls are cut follows from it.
inline constexpr std::uint64_t kCudnnRoomBytes = 576 * kMiB;

struct CudaOptions {
  int index = 0;
  std::uint64_t memory_limit_bytes = kUnlimited;  // of memory(), exact
  int host_numa_node = -1;                        // of host_memory(); -1: beside the GPU
  bool tf32 = false;            // fp32 matrix products on tensor cores, whose operands keep ten bits of mantissa
  std::string algorithms = {};  // Math::algorithms() of the run that this one goes on with: they are used again
  // Those of the machine's profile: used for products that the run has none for, where the same library chose them.
  std::string machine_algorithms = {};
  // Who makes attention in bf16: "own" (or empty), "cudnn", or "faster", of the two whichever is, timed once a shape.
  std::string attention = {};
};
// Why the module cannot be loaded; empty: it can. For a look at the machine: it maps CUDA's libraries.
std::string cuda_module_trouble();
std::unique_ptr<Device> make_cuda_device(ThreadPool& pool, const CudaOptions& options = {});

}  // namespace terrace
