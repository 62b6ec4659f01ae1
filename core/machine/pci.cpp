#include <terrace/core/machine/pci.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <terrace/core/machine/machine.h>

namespace terrace::machine {

namespace {

std::filesystem::path folder_of(std::string bus_id, const std::filesystem::path& root) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  // Some drivers write the domain with eight digits, the kernel with four.
  constexpr std::string_view kLongDomain = "0000";
  if (bus_id.size() == std::string_view("00000000:17:00.0").size() && bus_id.starts_with(kLongDomain)) {
    bus_id.erase(0, kLongDomain.size());
  }
  return root / "sys/bus/pci/devices" / bus_id;
}

double number_in(const std::filesystem::path& file) {
  double number = 0;
  return std::ifstream(file) >> number ? number : 0;
}

// `which`: "max" or "current".
PciLink link_in(const std::filesystem::path& end, const std::string& which) {
  const PciLink link{number_in(end / (which + "_link_speed")) * 1e9,
                     static_cast<int>(number_in(end / (which + "_link_width")))};
  return link.transfers_s == 0 ? PciLink{} : link;
}

}  // namespace

int PciLink::generation() const {
  int generation = 0;
  for (const double transfers : {2.5e9, 5e9, 8e9, 16e9, 32e9, 64e9}) generation += transfers_s >= transfers ? 1 : 0;
  return generation;
}

double PciLink::bytes_s() const {
  const double of_bits = transfers_s <= 5e9 ? 8.0 / 10 : 128.0 / 130;
  return transfers_s * of_bits / 8 * lanes;
}

PciLink link_of_pci(std::string bus_id, const std::filesystem::path& root) {
  return ends_of_pci(std::move(bus_id), root).possible();
}

PciLink PciEnds::possible() const {
  if (card.lanes == 0 || slot.lanes == 0) return card;
  return {std::min(card.transfers_s, slot.transfers_s), std::min(card.lanes, slot.lanes)};
}

PciEnds ends_of_pci(std::string bus_id, const std::filesystem::path& root) {
  std::error_code error;
  const auto device = std::filesystem::canonical(folder_of(std::move(bus_id), root), error);
  if (error) return {};
  return {link_in(device, "max"), link_in(device.parent_path(), "max"), link_in(device, "current")};
}

int numa_node_of_pci(std::string bus_id, const std::filesystem::path& root) {
  std::ifstream file(folder_of(std::move(bus_id), root) / "numa_node");
  int node = -1;
  if (!(file >> node)) return -1;
  return node < read_topology(root).numa_nodes ? node : -1;
}

}  // namespace terrace::machine
