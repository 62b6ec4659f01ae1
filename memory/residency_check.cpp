// The invariants, and the text of a refusal.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/memory/residency.h>

namespace terrace {

DoesNotFit Residency::does_not_fit(const Shortage& shortage) const {
  std::array<std::pair<std::uint64_t, Kind>, kKinds> pinned{};
  for (std::size_t k = 0; k < kKinds; ++k) pinned[k].second = static_cast<Kind>(k);
  for (const ChunkId c : ids_) {
    if (copy(c, shortage.tier).pins > 0) pinned[static_cast<std::size_t>(kind_of(c))].first += bytes_of(c);
  }
  std::ranges::stable_sort(pinned, std::greater{}, [](const auto& p) { return p.first; });

  const Tier tier = shortage.tier;
  auto text = fmt::format("{} tier: a request of {} does not fit, {} are missing\n  budget {}, {} reserved", name_of(tier),
                          format_bytes(shortage.bytes), format_bytes(shortage.missing_bytes), format_bytes(budget_.of(tier)),
                          format_bytes(space_[tier].reserved_bytes()));
  for (std::size_t k = 0; k < 3 && pinned[k].first > 0; ++k) {
    text += fmt::format("{} {} of {}s", k == 0 ? "; in use:" : ",", format_bytes(pinned[k].first), name_of(pinned[k].second));
  }
  return {tier, shortage.missing_bytes, text};
}

void Residency::check() const {
  const auto demand = [](bool holds, ChunkId c, Tier t, std::string_view what) {
    if (!holds) throw std::logic_error(fmt::format("residency: chunk {} on the {}: {}", index(c), name_of(t), what));
  };
  std::vector<std::pair<Range, ChunkId>> places;
  for (const ChunkId c : ids_) {
    const bool spare = copy(c, Tier::disk).valid && !at(c).kept_on_disk && valid_elsewhere(c, Tier::disk);
    demand(spare == at(c).spare && spare == spare_on_disk_.contains(c), c, Tier::disk,
           "it is spare but not listed, or listed but not spare");
  }
  for (const Tier t : kAllTiers) {
    places.clear();
    std::uint64_t bytes = 0, pinned = 0;
    std::array<std::size_t, kLeavings> listed{};
    for (const ChunkId c : ids_) {
      const Chunk& chunk = at(c);
      const Copy& here = chunk.copy[t];
      const bool valid_somewhere = std::ranges::any_of(chunk.copy, &Copy::valid);
      demand(chunk.content == valid_somewhere, c, t, "it has content but no valid copy, or a valid copy but no content");
      demand(!here.valid || here.placed, c, t, "it is valid but has no place");
      const Clocks& times = clocks(c, t);
      const Clock busy = table_.of(times.busy);
      Clock both = busy;
      table_.merge_into(both, times.ready);
      demand(busy == both, c, t, "its clock `busy` does not include its clock `ready`");
      demand(here.pins == 0 || here.valid, c, t, "it is pinned but not valid");
      demand(!chunk.writing || here.pins == 0 || here.pins == 1, c, t, "one lease writes it while another has it pinned");
      const ChunkId first = head(c, t);
      if (t == Tier::device) {
        const auto at_offset = copy(first, t).offset + (index(c) - index(first)) * bytes_of(c);
        demand(here.placed == copy(first, t).placed && (!here.placed || here.offset == at_offset), c, t,
               "its run is not contiguous");
      }
      if (here.placed) {
        places.push_back({{here.offset, place_bytes(c, t)}, c});
        bytes += place_bytes(c, t);
      }
      const Unit& unit = chunk.unit[t];
      if (first != c) continue;
      std::uint32_t pins = 0;
      std::uint32_t valid = 0, only = 0;
      for (const ChunkId m : members(c, t)) {
        pins += copy(m, t).pins;
        valid += copy(m, t).valid ? 1 : 0;
        only += t != Tier::disk && copy(m, t).valid && !valid_elsewhere(m, t) ? 1 : 0;
      }
      demand(valid == unit.valid && only == unit.only, c, t, "the unit's counts of valid chunks are wrong");
      demand(pins == unit.pins, c, t, "the pins of the unit and of its chunks differ");
      demand(!unit.held, c, t, "it is still held after its request");
      demand(here.placed || !unit.promised, c, t, "it is promised but has no place");
      demand(!here.placed || valid > 0 || unit.promised || (t == Tier::disk && chunk.kept_on_disk), c, t,
             "it has a place that is not needed");
      const bool evictable = t != Tier::disk && here.placed && pins == 0;
      for (std::size_t which = 0; which < kLeavings; ++which) {
        const bool in_list = evictable && (which == static_cast<std::size_t>(Leaving::any) || only == 0);
        demand(in_list == (unit.listed[which] != kUnlisted), c, t,
               "it is evictable but not listed, or listed but not evictable");
        demand(!in_list || evictable_[which][t].at(unit.listed[which]) == c, c, t, "its position in the list is wrong");
        listed[which] += in_list ? 1 : 0;
      }
      if (pins > 0) pinned += unit_bytes(c, t);
    }
    std::ranges::sort(places, {}, [](const auto& p) { return p.first.offset; });
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto& [range, c] = places[i];
      demand(range.offset + range.bytes <= budget_.of(t), c, t, "its place exceeds the budget");
      demand(i == 0 || places[i - 1].first.offset + places[i - 1].first.bytes <= range.offset, c, t,
             "its place overlaps that of another chunk");
    }
    if (bytes != space_[t].reserved_bytes() || pinned != pinned_bytes_[t] || listed[0] != evictable_[0][t].size() ||
        listed[1] != evictable_[1][t].size()) {
      throw std::logic_error(fmt::format("residency: the totals of the {} tier do not add up", name_of(t)));
    }
    space_[t].check();
  }
}

}  // namespace terrace
