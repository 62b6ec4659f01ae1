// Measures this machine and keeps the result: the machine profile, by which runs are planned.
//
// Threads: any, one at a time for a device. Errors: Error if the device is absent or the file cannot be written.
#pragma once

#include <filesystem>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// The given file, or the one that is kept for the run's device.
std::filesystem::path profile_file(const RunConfig& config);
// Takes about ten seconds. A disk is measured if the run has one; otherwise an earlier measurement of a disk is kept.
void measure_and_save(const RunConfig& config);
// Before its first run on a GPU, the first rank of a machine measures it, because nothing else says how fast the host's memory,
// the disk and the link are. A measurement that fails is only a warning.
void measure_before_first_run(const RunConfig& config);

}  // namespace terrace::cli
