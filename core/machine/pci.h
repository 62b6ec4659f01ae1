// Where a GPU is attached to the host, and by what link.
//
// Threads: any. Errors: none; what is unknown is -1, or a link without lanes.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::machine {

// Tests give another root for /sys. A device is named "0000:17:00.0", in either case.

// The NUMA node of a PCI device, or -1 if the kernel names none or one that this machine lacks.
int numa_node_of_pci(std::string bus_id, const std::filesystem::path& root = "/");

struct PciLink {
  double transfers_s = 0;                // of a lane, each direction: 16e9 is PCIe 4
  int lanes = 0;                         // 0: unknown
  [[nodiscard]] int generation() const;  // 4 for 16e9; 0: unknown
  // Payload in each direction, without the headers of packets: https://pcisig.com/specifications, encodings of PCIe 1 to 6.
  [[nodiscard]] double bytes_s() const;
};
// Both ends of a link, and what they run at now.
struct PciEnds {
  PciLink card, slot;                      // the most that each supports; without lanes if the kernel does not tell
  PciLink now;                             // an idle link is slower, and wakes up with the first copies
  [[nodiscard]] PciLink possible() const;  // of both
};
PciEnds ends_of_pci(std::string bus_id, const std::filesystem::path& root = "/");
// The fastest link that the device and the port above it support. (A link that is idle may be slower for the time being.)
PciLink link_of_pci(std::string bus_id, const std::filesystem::path& root = "/");

}  // namespace terrace::machine
