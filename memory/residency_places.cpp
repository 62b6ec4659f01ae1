// Places of chunks: taking and freeing them, and the lists of evictable units.
#include <algorithm>
#include <utility>

#include <terrace/memory/residency.h>

namespace terrace::memory {

std::span<const ChunkId> Residency::members(ChunkId head, Tier t) const {
  return std::span(ids_).subspan(index(head), t == Tier::device ? run_of(head).count : 1);
}

std::uint64_t Residency::place_bytes(ChunkId c, Tier t) const {
  const Run& run = run_of(c);
  const bool copy_on_write = t == Tier::disk && run.kind != ChunkKind::gradient && run.kind != ChunkKind::activation;
  return run.bytes * (copy_on_write ? generations_ : 1);
}

bool Residency::valid_elsewhere(ChunkId c, Tier t) const {
  return std::ranges::any_of(kAllTiers, [&](Tier other) { return other != t && copy(c, other).valid && counts(other); });
}

void Residency::set_valid(ChunkId c, Tier t, bool valid) {
  if (copy(c, t).valid == valid) return;
  const auto count = [&](bool counted) {
    for (const Tier s : {Tier::device, Tier::host}) {
      if (!copy(c, s).valid || valid_elsewhere(c, s)) continue;
      auto& only = at(head(c, s)).unit[s].only;
      const bool was_free = only == 0;
      only += counted ? 1U : ~0U;
      if (was_free != (only == 0)) relist(head(c, s), s);
    }
  };
  count(false);
  copy(c, t).valid = valid;
  at(head(c, t)).unit[t].valid += valid ? 1U : ~0U;
  count(true);
  list_spare(c);
}

void Residency::keep_on_disk(ChunkId c, bool kept) {
  at(c).kept_on_disk = kept;
  list_spare(c);
}

void Residency::list_spare(ChunkId c) {
  auto& chunk = at(c);
  const bool spare = chunk.copy[Tier::disk].valid && !chunk.kept_on_disk && valid_elsewhere(c, Tier::disk);
  if (std::exchange(chunk.spare, spare) == spare) return;
  if (spare)
    spare_on_disk_.insert(c);
  else
    spare_on_disk_.erase(c);
}

void Residency::place(ChunkId head, Tier t, const Space::Reserved& reserved) {
  auto offset = reserved.range.offset;
  for (const ChunkId c : members(head, t)) {
    auto& here = copy(c, t);
    here.placed = true;
    here.offset = offset;
    table_.set(clocks(c, t).busy, reserved.after);
    offset += place_bytes(c, t);
  }
  relist(head, t);
}

// A freed place keeps the clock of its last operations: the next occupant waits for them. Each chunk of a run frees its own
// part, so that the next occupant of one part does not wait for the users of all.
void Residency::unplace(ChunkId head, Tier t) {
  for (const ChunkId c : members(head, t)) {
    auto& here = copy(c, t);
    auto& times = clocks(c, t);
    space_[t].free({here.offset, place_bytes(c, t)}, table_.of(times.busy));
    here = Copy{};
    table_.clear(times.ready);
    table_.clear(times.busy);
  }
  at(head).unit[t].promised = false;
  relist(head, t);
}

void Residency::settle(ChunkId head, Tier t) {
  if (!copy(head, t).placed) return;
  const Unit& unit = at(head).unit[t];
  const bool needed =
      unit.valid > 0 || unit.pins > 0 || unit.held || unit.promised || (t == Tier::disk && at(head).kept_on_disk);
  if (!needed) return unplace(head, t);
  relist(head, t);
}

void Residency::relist(ChunkId head, Tier t) {
  if (t == Tier::disk || std::exchange(at(head).unit[t].stale, true)) return;
  stale_[t].push_back(head);
}

void Residency::update_lists(Tier t) {
  for (const ChunkId head : stale_[t]) {
    Unit& unit = at(head).unit[t];
    unit.stale = false;
    const bool evictable = copy(head, t).placed && unit.pins == 0 && !unit.held;
    list(head, t, Leaving::any, evictable);
    list(head, t, Leaving::free, evictable && unit.only == 0);
  }
  stale_[t].clear();
}

void Residency::list(ChunkId head, Tier t, Leaving leaving, bool evictable) {
  const auto which = static_cast<std::size_t>(leaving);
  auto& position = at(head).unit[t].listed[which];
  auto& units = evictable_[which][t];
  if (evictable == (position != kUnlisted)) return;
  policy_.may_leave(head, t, leaving, evictable);
  if (evictable) {
    position = static_cast<std::uint32_t>(units.size());
    units.push_back(head);
  } else {
    at(units.back()).unit[t].listed[which] = position;
    units[position] = units.back();
    units.pop_back();
    position = kUnlisted;
  }
}

void Residency::hold(ChunkId head, Tier t, bool held) {
  if (std::exchange(at(head).unit[t].held, held) == held) return;
  relist(head, t);
}

void Residency::pin(ChunkId c, Tier t) {
  ++copy(c, t).pins;
  const ChunkId unit = head(c, t);
  at(unit).unit[t].promised = false;
  if (at(unit).unit[t].pins++ == 0) pinned_bytes_[t] += unit_bytes(unit, t);
  relist(unit, t);
}

void Residency::unpin(ChunkId c, Tier t) {
  --copy(c, t).pins;
  const ChunkId unit = head(c, t);
  if (--at(unit).unit[t].pins == 0) pinned_bytes_[t] -= unit_bytes(unit, t);
  settle(unit, t);
}

void Residency::give_up(ChunkId c, Tier t) {
  set_valid(c, t, false);
  settle(head(c, t), t);
}

void Residency::reserve_disk_place(ChunkId c) {
  keep_on_disk(c, true);
  if (copy(c, Tier::disk).placed) return;
  std::vector<Move> none;  // making room on disk only drops copies that are also valid in another tier
  Order order{.moves = none};
  if (room(c, Tier::disk, order)) return;
  keep_on_disk(c, false);
  throw does_not_fit(*order.shortage);
}

}  // namespace terrace::memory
