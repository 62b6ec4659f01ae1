// The device of a run: cpu, or a GPU by its number. If several ranks share a machine, the number is the GPU of the first rank,
// and the other ranks take the next GPUs; a rank to which its launcher shows one GPU only takes that one.
//
// Threads: any. Errors: Error(ErrorKind::missing) for an absent device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <terrace/core/device/cuda.h>
#include <terrace/core/device/device.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/core/machine/machine.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// Resolves --device auto: to the first GPU, if this machine has enough GPUs for its ranks.
void find_device(RunConfig& config, std::int64_t ranks_here);
bool has_gpus(const RunConfig& config);       // whether this machine has any, even if the run cannot use them
void demand_device(const RunConfig& config);  // throws if a GPU of this machine's ranks is absent
GpuInfo find_gpu(const RunConfig& config, std::int64_t local_rank);
// `algorithms`: the choices that an earlier part of the run recorded. The machine profile decides the others.
std::unique_ptr<Device> make_device(const RunConfig& config, ThreadPool& pool, const std::string& algorithms = {});
// A pool of `--threads` threads. With a GPU, they run on the cores of its NUMA node, whose memory is its host memory.
ThreadPool make_pool(const RunConfig& config);
// How many of `cores` cores the pool takes if `--threads` does not say. With a GPU, up to two cores are left for the threads
// that issue work to it, because otherwise it waits for them.
int usual_threads(const RunConfig& config, int cores);
// The budget `auto`. For a GPU: its free memory, less 5 % of all its memory or what the driver and the libraries will take,
// whichever is more. For the CPU device: 95 % of half of the available memory.
std::uint64_t usual_device_bytes(const RunConfig& config);
// What decides the bits beside settings and algorithms: the processor's group (core/math/product_group.h), or the GPU's model.
std::string bits_group(const RunConfig& config);
// Adds the algorithms that the device's math chose to the machine profile, if there is one, for later runs. Failing to write it
// is only a warning, because the run has its own record.
void keep_algorithms(const RunConfig& config, const std::string& chosen);
// Reads the given file, or else the saved profile of the device, or else assumes rates. A saved profile that cannot be read
// does not count, which is only a warning, for each command to give once.
MachineProfile machine_profile(const RunConfig& config);
std::optional<std::string> warning_of_profile(const RunConfig& config);

}  // namespace terrace::cli
