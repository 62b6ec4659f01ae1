// Prefetching of content and of places. A prefetch is done only if all of it is possible and every victim is needed later than
// the chunk.
#include <algorithm>
#include <stdexcept>

#include <terrace/memory/residency.h>

namespace terrace::memory {

bool Residency::prefetch(ChunkId chunk, Tier tier, std::vector<Move>& moves) {
  if (tier == Tier::disk) throw std::logic_error("residency: prefetch() to disk; use flush()");
  if (!at(chunk).content) return false;
  if (at(chunk).writing || copy(chunk, tier).valid) return copy(chunk, tier).valid;
  const auto victims = plan_prefetch(chunk, tier);
  if (!victims) return false;

  Order order{.moves = moves};
  if (!evict_all(*victims, order) || !bring(chunk, tier, order))
    throw std::logic_error("residency: a planned prefetch did not fit");
  policy_.used(chunk, tier);
  if (head(chunk, tier) != chunk) policy_.used(head(chunk, tier), tier);
  return true;
}

bool Residency::place_ahead(ChunkId chunk, Tier tier, std::vector<Move>& moves) {
  if (tier == Tier::disk) throw std::logic_error("residency: place_ahead() on disk; use reserve_on_disk()");
  // With a disk below the host, a chunk that leaves the device early may push others from the host to the disk: measured in
  // plans, that costs more than it saves.
  const bool has_disk = budget_.disk > 0 && !budget_.commit_only;
  if (has_disk || copy(chunk, tier).placed) return true;
  if (at(chunk).content) return false;
  const auto victims = plan_prefetch(chunk, tier);
  if (!victims) return false;
  Order order{.moves = moves};
  const ChunkId unit = head(chunk, tier);
  if (!evict_all(*victims, order) || !room(unit, tier, order)) throw std::logic_error("residency: a planned place was taken");
  at(unit).unit[tier].promised = true;
  return true;
}

// Evicts in the order in which the plan was made, so that the same places are found again.
bool Residency::evict_all(const Victims& victims, Order& order) {
  return std::ranges::all_of(victims.host, [&](ChunkId victim) { return evict(victim, Tier::host, order); }) &&
         std::ranges::all_of(victims.device, [&](ChunkId victim) { return evict(victim, Tier::device, order); });
}

// Offers the chunks of a full tier that are needed later than `incoming`, the latest first, until `judge` answers that their
// room is enough, or can never be.
bool Residency::collect_victims(Tier t, ChunkId incoming, const std::function<Enough(ChunkId)>& judge) {
  auto enough = Enough::not_yet;
  update_lists(t);
  policy_.offer_victims(t, Leaving::any, evictable_[static_cast<std::size_t>(Leaving::any)][t], [&](ChunkId victim) {
    if (!policy_.worth(t, incoming, victim)) return false;
    enough = judge(victim);
    return enough == Enough::not_yet;
  });
  return enough == Enough::yes;
}

std::optional<Residency::Victims> Residency::plan_prefetch(ChunkId chunk, Tier tier) {
  Victims victims;
  // 1. A place on the device for the whole run.
  const auto unit = tier == Tier::device && !copy(chunk, tier).placed ? unit_bytes(head(chunk, tier), tier) : 0;
  if (unit > 0 && !space_[tier].holes().has(unit)) {
    Holes holes = space_[tier].holes();
    const bool fits = collect_victims(tier, chunk, [&](ChunkId victim) {
      victims.device.push_back(victim);
      return holes.give({copy(victim, tier).offset, unit_bytes(victim, tier)}) >= unit ? Enough::yes : Enough::not_yet;
    });
    if (!fits) return std::nullopt;
  }
  // 2. The bytes that the host must take: device victims that are valid nowhere else, then the chunk itself, if it is
  // prefetched to the host or through it. Host copies of `spared` chunks must not be victims: they are sources, or let a device
  // victim leave without a move.
  std::vector<ChunkId> coming, spared{chunk};
  for (const ChunkId victim : victims.device) {
    for (const ChunkId c : members(victim, Tier::device)) {
      spared.push_back(c);
      if (copy(c, Tier::device).valid && !valid_elsewhere(c, Tier::device)) coming.push_back(c);
    }
  }
  if ((at(chunk).content || tier == Tier::host) && !copy(chunk, Tier::host).valid) coming.push_back(chunk);
  if (coming.empty()) return victims;

  // 3. Room for those bytes, tried with the same steps that will be carried out.
  const auto fits_in = [&](const Holes& holes) {
    if (coming.size() == 1) return holes.has(bytes_of(coming.front()));  // the usual case, which needs no copy
    Holes trial = holes;
    return std::ranges::all_of(coming, [&](ChunkId c) {
      return trial.take(bytes_of(c), budget_.host == kUnlimited ? End::low : end_of(c, Tier::host)).has_value();
    });
  };
  if (fits_in(space_[Tier::host].holes())) return victims;
  if (!at(chunk).content) return std::nullopt;  // a place without content is not worth an eviction from the host
  Holes host = space_[Tier::host].holes(), disk = space_[Tier::disk].holes();
  std::uint64_t wanted = 0, free = budget_.host - space_[Tier::host].reserved_bytes();
  for (const ChunkId c : coming) wanted += bytes_of(c);
  std::ranges::sort(spared);
  const bool fits = collect_victims(Tier::host, chunk, [&](ChunkId victim) {
    if (std::ranges::binary_search(spared, victim)) return Enough::not_yet;
    const bool needs_disk = copy(victim, Tier::host).valid && !valid_elsewhere(victim, Tier::host);
    if (needs_disk && budget_.commit_only) return Enough::never;
    if (needs_disk && !copy(victim, Tier::disk).placed &&
        !disk.take(place_bytes(victim, Tier::disk), end_of(victim, Tier::disk)))
      return Enough::never;
    const auto hole = host.give({copy(victim, Tier::host).offset, bytes_of(victim)});
    free += bytes_of(victim);
    victims.host.push_back(victim);
    if (coming.size() == 1) return hole >= wanted ? Enough::yes : Enough::not_yet;
    return free >= wanted && fits_in(host) ? Enough::yes : Enough::not_yet;
  });
  if (!fits) return std::nullopt;
  return victims;
}

}  // namespace terrace::memory
