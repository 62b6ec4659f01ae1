// The topology of this machine, and its profile: measured bandwidths and rates.
//
// Threads: any. Errors: Error(ErrorKind::refused) for a malformed profile file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <terrace/core/machine/links.h>

namespace terrace {

class Device;

struct Topology {
  std::string cpu_model;
  int cores = 1;  // that this process may use (affinity and cgroup quota respected)
  int numa_nodes = 1;
  std::uint64_t memory_bytes = 0;            // of the machine
  std::uint64_t available_memory_bytes = 0;  // now, cgroup limits respected
  std::string simd;                          // "avx512", "avx2", "baseline"
};
Topology read_topology(const std::filesystem::path& root = "/");  // tests give another root for /proc and /sys
int usable_cores(const std::vector<int>& of);                     // how many of these (cores.h); empty: of all

// The figures for the planner's simulator. Rates in bytes or FLOP per second.
struct MachineProfile {
  double disk_read = 2.5e9, disk_write = 2.5e9;                          // bytes/s, direct, of all paths together
  double disk_both = 5e9;                                                // bytes/s read and written at once
  double memory_copy = 8e9;                                              // bytes/s, host <-> CPU-device arena, while computing
  double memory_stream = 2e10;                                           // bytes/s read + written by an update loop
  double matmul_fp32 = 1.5e11, matmul_bf16 = 2.5e11, matmul_fp64 = 2e9;  // FLOP/s, all threads
  double matmul_float8 = 0;  // the same with operands that are already rounded to 8 bits; 0: not measured
  // Not measured: on a GPU, what TransformerEngine reaches on an H200; a CPU widens the operands again.
  [[nodiscard]] double float8_rate() const {
    constexpr double kOfGpu = 1.92, kOfCpu = 0.5;
    return matmul_float8 > 0 ? matmul_float8 : matmul_bf16 * (separate_device() ? kOfGpu : kOfCpu);
  }
  // The share of the computing speed that remains during a copy, or disk I/O: on a CPU device they use the same cores.
  double compute_beside_copy = 1, compute_beside_disk = 1;
  double disk_latency_s = 1e-4;
  bool disk_assumed = true;    // the disk was not measured: its rates are these defaults
  std::string device = "cpu";  // what computes: matmul_* are its rates
  // A device with its own processor and memory, which neither host work nor copies slow down.
  [[nodiscard]] bool separate_device() const { return device != "cpu"; }
  double device_stream = 2e12;                // bytes/s read + written by its kernels in its memory
  double upload = 2.5e10, download = 2.5e10;  // bytes/s between host and device, each direction alone
  machine::Links links;                       // between ranks; not in a profile's file, which describes one machine
  int threads = 1;
  std::string measured_at;  // ISO time; empty: these defaults were never measured
};
// Measures in about `seconds`; writes one temporary file of at most 512 MiB under each path.
// Without a path the disk stays assumed.
MachineProfile measure_machine(Device& device, const std::vector<std::filesystem::path>& nvme_paths, double seconds);
void copy_disk(const MachineProfile& from, MachineProfile& to);  // only the disk's values
void save_profile(const MachineProfile& profile, const std::filesystem::path& file);
MachineProfile load_profile(const std::filesystem::path& file);

}  // namespace terrace
