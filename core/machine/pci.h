// The part of the host to which a GPU is attached.
//
// Threads: any. Errors: none; unknown is -1.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::machine {

// The NUMA node of a PCI device ("0000:17:00.0", in either case), or -1 if the kernel names none or one that this machine
// lacks.
int numa_node_of_pci(std::string bus_id, const std::filesystem::path& root = "/");  // tests give another root for /sys

}  // namespace terrace::machine
