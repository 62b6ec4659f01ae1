// The device of a run: cpu, or a GPU by its number. Where ranks share a machine, that is the first one's, and each has its own.
//
// Threads: any. Errors: Error(Exit::hardware_missing) for a device that is not there.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/core/device.h>
#include <terrace/core/machine.h>
#include <terrace/core/thread_pool.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

void demand_device(const RunConfig& config);  // throws when it, or one of the machine's other ranks', is not there
// `algorithms`: what an earlier part of the run recorded of its math. What the run has none for is as the machine profile says.
std::unique_ptr<Device> make_device(const RunConfig& config, ThreadPool& pool, const std::string& algorithms = {});
// `--threads`, beside a GPU on the cores of its NUMA node, where its host memory lies.
ThreadPool make_pool(const RunConfig& config);
// What `auto` is: of a GPU all its memory less 5 %, of the CPU device 95 % of half of the memory that is available.
std::uint64_t usual_device_bytes(const RunConfig& config);
// What the device's math chose is added to the machine profile, where there is one, for runs to come. A profile that cannot be
// written is warned of: the run has its own record.
void keep_algorithms(const RunConfig& config, const std::string& chosen);
// The named file, else the saved profile of the device, else (with a warning when that cannot be read) rates that were never
// measured.
MachineProfile machine_profile(const RunConfig& config);

}  // namespace terrace::cli
