#include <terrace/core/machine/pci.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>

#include <terrace/core/machine/machine.h>

namespace terrace::machine {

int numa_node_of_pci(std::string bus_id, const std::filesystem::path& root) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // Some drivers write the domain with eight digits, the kernel with four.
  constexpr std::string_view kLongDomain = "0000";
  if (bus_id.size() == std::string_view("00000000:17:00.0").size() && bus_id.starts_with(kLongDomain)) {
    bus_id.erase(0, kLongDomain.size());
  }
  std::ifstream file(root / "sys/bus/pci/devices" / bus_id / "numa_node");
  int node = -1;
  if (!(file >> node)) return -1;
  return node < read_topology(root).numa_nodes ? node : -1;
}

}  // namespace terrace::machine
