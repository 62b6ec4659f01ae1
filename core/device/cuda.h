// Finds GPUs and makes a device on one. All code that needs CUDA is in a module that is loaded on first use, so that a program
// runs without it on machines without a GPU or driver, and elsewhere loads it only if needed.
//
// Owner:   the caller; the pool is borrowed and must outlive the device.
// Threads: any.
// Errors:  Error(ErrorKind::missing) that says what is missing and how to get it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <terrace/core/base/units.h>
#include <terrace/core/device/device.h>

namespace terrace {

struct GpuInfo {
  int index = 0;  // "cuda:0"
  std::string name = {};
  std::string pci_bus_id = {};
  std::string uuid = {};  // of the GPU, or of the part of it that this process may use; empty: the driver does not tell
  int numa_node = -1;     // of the host memory nearest to it; -1: unknown
  std::uint64_t memory_bytes = 0;
  int compute_major = 0, compute_minor = 0;
  // What its data sheet says; 0: the driver does not tell.
  int multiprocessors = 0;
  double clock_hz = 0, memory_bytes_s = 0;
  double link_bytes_s = 0;  // to the host, each direction
};

// The least compute capability, 8.9, that multiplies numbers of 8 bits.
inline constexpr int kLeastFloat8Capability = 89;

struct GpuSearch {
  std::vector<GpuInfo> gpus = {};
  std::string why_none = {};  // if the list is empty: the reason in one line
  std::string mend = {};
  int cuda_version = 0;  // the newest CUDA version that the driver supports: 12040 is 12.4
};

// Sets what CUDA reads from the environment; call it before the first call of CUDA in the process. Each stream gets its own
// queue, so that a kernel that waits for another GPU delays no other stream. With several GPUs, all kernels are loaded at the
// start: loading one later may have to wait for a running kernel, which waits for a GPU that waits for this one. Variables that
// the user has set are kept.
void prepare_cuda(bool several_gpus);

// Uses only the driver, so that no CUDA library is loaded on a machine without a GPU. Tests give another driver. Prepares CUDA
// for one GPU.
GpuSearch find_gpus(const std::string& driver = "libcuda.so.1");

// Free memory of a GPU now, less what this process's own context takes: the call itself makes that context. Nothing if the
// driver cannot tell.
std::optional<std::uint64_t> free_gpu_bytes(int index, const std::string& driver = "libcuda.so.1");

// Device memory beside a stream's workspace, where cuDNN may compute attention: enough for four groups of four heads of 4,096
// positions. Calls are split to fit into it.
inline constexpr std::uint64_t kCudnnRoomBytes = 576 * kMiB;

struct CudaOptions {
  int index = 0;
  std::uint64_t memory_limit_bytes = kUnlimited;  // of memory(), exact
  int host_numa_node = -1;                        // of host_memory(); -1: beside the GPU
  std::string algorithms = {};                    // Math::algorithms() of the run that is resumed: they are used again
  // The algorithms in the machine profile. Used for products that `algorithms` does not list, if the same library version chose
  // them.
  std::string machine_algorithms = {};
  // The kernels for bf16 attention: "own" (or empty), "cudnn", or "faster": the faster of the two, timed once per shape.
  std::string attention = {};
  // Which of terrace's own attention kernels runs: "warps" or "warpgroups". Empty: the faster one that works on this GPU.
  std::string attention_kernel = {};
  Log log = {};
};
// Why the module cannot be loaded; empty if it can. Maps CUDA's libraries, so call it only for reports.
std::string cuda_module_trouble();
std::unique_ptr<Device> make_cuda_device(ThreadPool& pool, const CudaOptions& options = {});

}  // namespace terrace
