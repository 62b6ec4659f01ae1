// Moves content from tier to tier and makes room for it.

#include <terrace/memory/residency.h>

namespace terrace::memory {

void Residency::emit(ChunkId c, Tier from, Tier to, Order& order) {
  Clocks& source = clocks(c, from);
  Clocks& target = clocks(c, to);
  const Lane lane = lane_of(from, to);
  Move move{c, from, to, copy(c, from).offset, copy(c, to).offset, bytes_of(c), ++issued_[lane], order.not_before};
  table_.merge_into(move.after, source.ready);
  table_.merge_into(move.after, target.busy);
  set_valid(c, to, true);
  const auto end = Clock::after(lane, move.sequence);
  const ClockTable::Named moved(end, lane);
  table_.set(target.ready, moved);
  table_.set(target.busy, moved);
  table_.merge(source.busy, moved);
  traffic_.add(move);
  order.moves.push_back(move);
}

// Bytes between disk and device always go through the host, where the copy stays cached.
bool Residency::bring(ChunkId c, Tier to, Order& order) {
  if (copy(c, to).valid) return true;
  if (!copy(c, to).placed && !room(head(c, to), to, order)) return false;
  if (to != Tier::host && !copy(c, Tier::host).valid && !bring(c, Tier::host, order)) {
    settle(head(c, to), to);
    return false;
  }
  const Tier from = to != Tier::host ? Tier::host : copy(c, Tier::device).valid ? Tier::device : Tier::disk;
  emit(c, from, to, order);
  return true;
}

// The last valid copy of content is never dropped. The copies that are also valid in another tier are dropped first. The rest
// is moved down only then: making room below may evict copies of this unit there, and must know which of them are the last.
bool Residency::evict(ChunkId head, Tier t, Order& order) {
  for (const ChunkId c : members(head, t)) {
    if (valid_elsewhere(c, t)) set_valid(c, t, false);
  }
  for (const ChunkId c : members(head, t)) {
    if (!copy(c, t).valid) continue;
    if (t == Tier::host && budget_.commit_only) {  // no tier is below the host
      order.shortage = Shortage{t, place_bytes(c, t), place_bytes(c, t)};
      return false;
    }
    if (!bring(c, t == Tier::device ? Tier::host : Tier::disk, order)) return false;
    set_valid(c, t, false);
  }
  unplace(head, t);
  return true;
}

bool Residency::room(ChunkId head, Tier t, Order& order) {
  const auto bytes = unit_bytes(head, t);
  bool only_free = false;  // true once the tier below had no room: then only units that need no room there can leave
  for (;;) {
    if (const auto reserved = space_[t].reserve(bytes, end_of(head, t))) {
      place(head, t, *reserved);
      return true;
    }
    const auto victim = next_victim(t, only_free, order);
    if (!victim) {
      // If the tier below had no room, it has already reported the shortage; a tier that does not exist reports none.
      if (!only_free || budget_.of(order.shortage->tier) == 0) {
        order.shortage = Shortage{t, bytes, bytes - space_[t].largest_hole()};
      }
      return false;
    }
    if (!evict(*victim, t, order)) only_free = true;
  }
}

std::optional<ChunkId> Residency::next_victim(Tier t, bool only_free, const Order& order) {
  if (t == Tier::disk) {
    if (spare_on_disk_.empty()) return std::nullopt;
    return *spare_on_disk_.begin();
  }
  update_lists(t);
  const auto leaving = only_free ? Leaving::free : Leaving::any;
  if (const auto& units = evictable_[static_cast<std::size_t>(leaving)][t]; !units.empty()) {
    std::optional<ChunkId> best;
    policy_.offer_victims(t, leaving, units, [&](ChunkId victim) {
      best = victim;
      return false;
    });
    return best;
  }
  if (t != Tier::host) return std::nullopt;
  // No other victim is left: host copies of the request itself go to disk for now. The one that is uploaded last goes first.
  for (auto use = order.sources.rbegin(); use != order.sources.rend(); ++use) {
    const Unit& unit = at(use->chunk).unit[t];
    if (unit.held && unit.pins == 0 && copy(use->chunk, t).placed && (!only_free || free_to_give_up(use->chunk, t))) {
      return use->chunk;
    }
  }
  return std::nullopt;
}

}  // namespace terrace::memory
