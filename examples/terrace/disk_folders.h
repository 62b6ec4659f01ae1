// The folders of the disk tier, before a run is begun on them: they must be there, because a path that is not there is a disk
// that is not mounted, and what is written instead fills another one.
//
// Threads: any. Errors: Error(Exit::hardware_missing) that names the folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

void demand_disk_folders(const RunConfig& config);

struct MountedDisk {
  std::string folder;        // where it is mounted
  std::uint64_t device = 0;  // as stat() names it
  std::uint64_t bytes = 0;   // all of its space
};
// The disks that are mounted to be written; each once. The text is /proc/mounts.
std::vector<MountedDisk> mounted_disks(const std::string& mounts);
// If `device` is that of the disk which is mounted at /: a larger one.
std::optional<MountedDisk> larger_than_root(std::uint64_t device, std::span<const MountedDisk> disks);
// Of the folders of the run, one that lies on the root disk although there is a larger one.
std::optional<std::string> warning_of_root_disk(const RunConfig& config);

}  // namespace terrace::cli
