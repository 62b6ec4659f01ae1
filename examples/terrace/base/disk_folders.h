// Checks the folders of the disk tier before a run begins on them. They must exist: a missing path is often a disk that is not
// mounted, and what is written there would fill another disk.
//
// Threads: any. Errors: Error(ErrorKind::missing) that names the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

void demand_disk_folders(const RunConfig& config);

struct MountedDisk {
  std::string folder;        // where it is mounted
  std::uint64_t device = 0;  // as stat() names it
  std::uint64_t bytes = 0;   // its whole size
};
// Lists the disks that are mounted for writing, each once, from the text of /proc/mounts.
std::vector<MountedDisk> mounted_disks(const std::string& mounts);
// Returns the largest disk if it is larger than the one mounted at /, and `device` is the one at /.
std::optional<MountedDisk> larger_than_root(std::uint64_t device, std::span<const MountedDisk> disks);
// Warns of a folder of the run that is on the root disk although the machine has a larger disk.
std::optional<std::string> warning_of_root_disk(const RunConfig& config);

}  // namespace terrace::cli
