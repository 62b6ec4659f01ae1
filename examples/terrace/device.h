// The device of a run: cpu, or a GPU by its number. If several ranks share a machine, it is the GPU of the first one, and the
// others take the next GPUs.
//
// Threads: any. Errors: Error(Exit::hardware_missing) for an absent device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <terrace/core/device.h>
#include <terrace/core/machine.h>
#include <terrace/core/thread_pool.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// --device auto: the first GPU, if there are as many as the ranks of this machine need.
void find_device(RunConfig& config, std::int64_t ranks_here);
bool has_gpus(const RunConfig& config);       // this machine, whether or not the run can use them
void demand_device(const RunConfig& config);  // throws if a GPU of this machine's ranks is absent
// `algorithms`: those that an earlier part of the run recorded. For the others the machine profile decides.
std::unique_ptr<Device> make_device(const RunConfig& config, ThreadPool& pool, const std::string& algorithms = {});
// `--threads` threads; with a GPU on the cores of its NUMA node, which has its host memory.
ThreadPool make_pool(const RunConfig& config);
// How many of so many cores the pool takes if `--threads` does not say: those that issue to a GPU need two, or it waits for
// them.
int usual_threads(const RunConfig& config, int cores);
// The budget `auto`: for a GPU what is free of its memory, less 5 % of all or what the driver and the libraries will take,
// whichever is more; for the CPU device 95 % of half of the available memory.
std::uint64_t usual_device_bytes(const RunConfig& config);
// What decides the bits beside settings and algorithms: the group of the processor (core/product_group.h), or the GPU's model.
std::string bits_group(const RunConfig& config);
// Adds the algorithms that the device's math chose to the machine profile, if there is one, for later runs. Failing to write it
// is only a warning, because the run has its own record.
void keep_algorithms(const RunConfig& config, const std::string& chosen);
// The given file, or else the saved profile of the device, or else assumed rates. A saved profile that cannot be read is a
// warning.
MachineProfile machine_profile(const RunConfig& config);

}  // namespace terrace::cli
