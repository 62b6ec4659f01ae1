// The block device under a folder, as the kernel describes it: what its requests are split into, and which NUMA node it is on.
//
// Threads: any. Errors: none; what the kernel does not tell is 0, -1 or empty.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::bench {

struct BlockDevice {
  std::string name;                          // "nvme0n1", also for a partition of it; empty: unknown
  std::uint64_t most_request_bytes = 0;      // max_sectors_kb: the kernel splits larger requests
  std::uint64_t possible_request_bytes = 0;  // max_hw_sectors_kb: as far as the former can be raised
  int numa_node = -1;
  [[nodiscard]] bool known() const { return !name.empty(); }
  // The requests that reach the device for one of this size; 0: unknown. More if its memory is in many pieces.
  [[nodiscard]] std::uint64_t parts_of(std::uint64_t bytes) const;
};
// `number`: st_dev of a file or folder. Tests give another root for /sys.
BlockDevice block_device_of(dev_t number, const std::filesystem::path& root = "/");
BlockDevice block_device_of(const std::filesystem::path& folder);

// What to do about requests that the kernel splits; empty: nothing, they are not.
std::string split_advice(const BlockDevice& device, std::uint64_t block_bytes);

}  // namespace terrace::bench
