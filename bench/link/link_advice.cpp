#include <terrace/bench/link/link_advice.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace terrace::bench {
namespace {

constexpr double kNoise = 1.02;    // no copy is faster than its link by more
constexpr double kSlowLink = 0.8;  // of the fastest GPU's rate, or of its own rate alone

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

std::vector<std::string> gpus_advice(const std::string& op, const std::vector<GpuRates>& gpus) {
  const auto& fastest = *std::ranges::max_element(gpus, {}, &GpuRates::alone_gb_per_s);
  std::vector<std::string> advice, sharing;
  double alone = 0, together = 0;
  for (const auto& gpu : gpus) {
    if (gpu.alone_gb_per_s < kSlowLink * fastest.alone_gb_per_s)
      advice.push_back(
          fmt::format("{}: {} is slow even alone: {:.3g} GB/s, {:.0f} % of {}'s {:.3g}; see terrace bench pcie --gpu {}", op,
                      gpu.gpu, gpu.alone_gb_per_s, 100 * gpu.alone_gb_per_s / fastest.alone_gb_per_s, fastest.gpu,
                      fastest.alone_gb_per_s, gpu.gpu.substr(gpu.gpu.find(':') + 1)));
    if (gpu.together_gb_per_s >= kSlowLink * gpu.alone_gb_per_s) continue;
    sharing.push_back(gpu.gpu);
    alone += gpu.alone_gb_per_s;
    together += gpu.together_gb_per_s;
  }
  if (!sharing.empty())
    advice.push_back(
        fmt::format("{}: {} together: {:.3g} GB/s, {:.0f} % of the sum alone: they share a switch, a socket's link or its "
                    "memory, and a run on all of them has these rates; see the slots in the board's manual",
                    op, fmt::join(sharing, ", "), together, 100 * together / alone));
  return advice;
}

}  // namespace terrace::bench
