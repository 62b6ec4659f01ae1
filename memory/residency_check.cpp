// The invariants, and the text of a refusal.
#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <terrace/memory/residency.h>

namespace terrace::memory {

DoesNotFit Residency::does_not_fit(const Shortage& shortage) const {
  std::array<std::pair<std::uint64_t, ChunkKind>, kChunkKinds> pinned{};
  for (std::size_t k = 0; k < kChunkKinds; ++k) pinned[k].second = static_cast<ChunkKind>(k);
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

// The invariants of one tier.
class Residency::TierCheck {
 public:
  TierCheck(const Residency& residency, Tier tier) : r_(residency), t_(tier) {}

  void run() {
    for (const ChunkId c : r_.ids_) {
      check_copy(c);
      check_place(c);
      if (r_.head(c, t_) == c) check_unit(c);
    }
    if (stale_ != r_.stale_[t_].size())
      throw std::logic_error(fmt::format("residency: units of the {} tier are out of date without being noted", name_of(t_)));
    check_disjoint();
    if (bytes_ != r_.space_[t_].reserved_bytes() || pinned_ != r_.pinned_bytes_[t_] ||
        listed_[0] != r_.evictable_[0][t_].size() || listed_[1] != r_.evictable_[1][t_].size()) {
      throw std::logic_error(fmt::format("residency: the totals of the {} tier do not add up", name_of(t_)));
    }
    r_.space_[t_].check();
  }

  void demand(bool holds, ChunkId c, std::string_view what) const {
    if (!holds) throw std::logic_error(fmt::format("residency: chunk {} on the {}: {}", index(c), name_of(t_), what));
  }

 private:
  // Content, clocks and pins of a chunk.
  void check_copy(ChunkId c) const {
    const Chunk& chunk = r_.at(c);
    const Copy& here = chunk.copy[t_];
    const bool valid_somewhere = std::ranges::any_of(chunk.copy, &Copy::valid);
    demand(chunk.content == valid_somewhere, c, "it has content but no valid copy, or a valid copy but no content");
    demand(!here.valid || here.placed, c, "it is valid but has no place");
    const Clocks& times = r_.clocks(c, t_);
    const Clock busy = r_.table_.of(times.busy);
    Clock both = busy;
    r_.table_.merge_into(both, times.ready);
    demand(busy == both, c, "its clock `busy` does not include its clock `ready`");
    demand(here.pins == 0 || here.valid, c, "it is pinned but not valid");
    demand(!chunk.writing || here.pins == 0 || here.pins == 1, c, "one lease writes it while another has it pinned");
  }

  void check_place(ChunkId c) {
    const Copy& here = r_.copy(c, t_);
    if (t_ == Tier::device) {
      const ChunkId first = r_.head(c, t_);
      const auto at_offset = r_.copy(first, t_).offset + (index(c) - index(first)) * r_.bytes_of(c);
      demand(here.placed == r_.copy(first, t_).placed && (!here.placed || here.offset == at_offset), c,
             "its run is not contiguous");
    }
    if (!here.placed) return;
    places_.push_back({{here.offset, r_.place_bytes(c, t_)}, c});
    bytes_ += r_.place_bytes(c, t_);
  }

  void check_unit(ChunkId c) {
    const Unit& unit = r_.at(c).unit[t_];
    const bool placed = r_.copy(c, t_).placed;
    std::uint32_t pins = 0, valid = 0, only = 0;
    for (const ChunkId m : r_.members(c, t_)) {
      pins += r_.copy(m, t_).pins;
      valid += r_.copy(m, t_).valid ? 1 : 0;
      only += t_ != Tier::disk && r_.copy(m, t_).valid && !r_.valid_elsewhere(m, t_) ? 1 : 0;
    }
    demand(valid == unit.valid && only == unit.only, c, "the unit's counts of valid chunks are wrong");
    demand(pins == unit.pins, c, "the pins of the unit and of its chunks differ");
    demand(!unit.held, c, "it is still held after its request");
    demand(placed || !unit.promised, c, "it is promised but has no place");
    demand(!placed || valid > 0 || unit.promised || (t_ == Tier::disk && r_.at(c).kept_on_disk), c,
           "it has a place that is not needed");
    if (pins > 0) pinned_ += r_.unit_bytes(c, t_);
    stale_ += unit.stale ? 1 : 0;
    check_lists(c, unit, t_ != Tier::disk && placed && pins == 0);
  }

  void check_lists(ChunkId c, const Unit& unit, bool evictable) {
    for (std::size_t which = 0; which < kLeavings; ++which) {
      const bool in_list = evictable && (which == static_cast<std::size_t>(Leaving::any) || unit.only == 0);
      const bool listed = unit.listed[which] != kUnlisted;
      demand(unit.stale || in_list == listed, c, "it is evictable but not listed, or listed but not evictable");
      demand(!listed || r_.evictable_[which][t_].at(unit.listed[which]) == c, c, "its position in the list is wrong");
      listed_[which] += listed ? 1 : 0;
    }
  }

  void check_disjoint() {
    std::ranges::sort(places_, {}, [](const auto& p) { return p.first.offset; });
    std::uint64_t end = 0;  // of the previous place
    for (const auto& [range, c] : places_) {
      demand(range.offset + range.bytes <= r_.budget_.of(t_), c, "its place exceeds the budget");
      demand(end <= range.offset, c, "its place overlaps that of another chunk");
      end = range.offset + range.bytes;
    }
  }

  const Residency& r_;
  const Tier t_;
  std::vector<std::pair<Range, ChunkId>> places_;
  std::uint64_t bytes_ = 0, pinned_ = 0;
  std::array<std::size_t, kLeavings> listed_{};
  std::size_t stale_ = 0;
};

void Residency::check() const {
  const TierCheck on_disk(*this, Tier::disk);
  for (const ChunkId c : ids_) {
    const bool spare = copy(c, Tier::disk).valid && !at(c).kept_on_disk && valid_elsewhere(c, Tier::disk);
    on_disk.demand(spare == at(c).spare && spare == spare_on_disk_.contains(c), c,
                   "it is spare but not listed, or listed but not spare");
  }
  for (const Tier t : kAllTiers) TierCheck(*this, t).run();
}

}  // namespace terrace::memory
