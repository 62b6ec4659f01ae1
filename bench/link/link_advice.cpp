#include <terrace/bench/link/link_advice.h>

#include <algorithm>

#include <fmt/format.h>

namespace terrace::bench {
namespace {

constexpr double kNoise = 1.02;  // no copy is faster than its link by more

double gb(const machine::PciLink& link) { return 1e-9 * link.bytes_s(); }

}  // namespace

std::string describe(const machine::PciLink& link) {
  return link.lanes == 0 ? "unknown" : fmt::format("PCIe {} with {} lanes", link.generation(), link.lanes);
}

std::vector<std::string> link_advice(const machine::PciEnds& ends, double measured_bytes_s) {
  const auto& [card, slot, now] = ends;
  const auto possible = ends.possible();
  if (card.lanes == 0 || now.lanes == 0) return {};
  if (measured_bytes_s > kNoise * std::max(now.bytes_s(), possible.bytes_s()))
    return {
        fmt::format("the kernel names {} ({:.1f} GB/s), but {:.1f} GB/s were measured: a virtual machine hides the real link",
                    describe(now), gb(now), 1e-9 * measured_bytes_s)};
  std::vector<std::string> advice;
  if (slot.lanes != 0 && slot.lanes < card.lanes)
    advice.push_back(
        fmt::format("the card has {} lanes, its slot {}: the link carries at most {:.1f} GB/s each way instead of {:.1f}; "
                    "put the card into a slot of {} lanes",
                    card.lanes, slot.lanes, gb(possible), gb({possible.transfers_s, card.lanes}), card.lanes));
  if (slot.lanes != 0 && slot.generation() < card.generation())
    advice.push_back(fmt::format("the slot is PCIe {}, the card PCIe {}: a slot of the card's generation is faster",
                                 slot.generation(), card.generation()));
  if (now.lanes < possible.lanes)
    advice.push_back(
        fmt::format("{} of {} possible lanes are in use: seat the card again, check the riser, and whether the board "
                    "shares these lanes with another slot",
                    now.lanes, possible.lanes));
  if (now.generation() < possible.generation())
    advice.push_back(
        fmt::format("while copies run the link is PCIe {}, although PCIe {} is possible: set the slot's speed to "
                    "automatic in the firmware, and check the riser",
                    now.generation(), possible.generation()));
  return advice;
}

}  // namespace terrace::bench
