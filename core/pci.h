// Which part of the host a GPU hangs on.
//
// Threads: any. Errors: none; what is not known is -1.
#pragma once

#include <filesystem>
#include <string>

namespace terrace {

// The NUMA node of a PCI device ("0000:17:00.0", letters of any case), or -1 where the kernel names none of this machine's.
int numa_node_of_pci(std::string bus_id, const std::filesystem::path& root = "/");  // tests give another root for /sys

}  // namespace terrace
