// The protocol: chunks, their leases and the end of both.
#include <terrace/memory/residency.h>

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

namespace terrace::memory {
namespace {

[[noreturn]] void broken(ChunkId chunk, std::string_view what) {
  throw std::logic_error(fmt::format("residency: chunk {} {}", index(chunk), what));
}

// A request has a few chunks, or all chunks of a layer: up to a hundred thousand for a large embedding.
void demand_written_once(std::span<const Use> uses) {
  constexpr std::size_t kFew = 16;
  const auto refuse = [](const Use& use) { broken(use.chunk, "is written, but occurs twice in one request"); };
  if (uses.size() <= kFew) {
    for (const auto& use : uses)
      if (writes(use.access) && std::ranges::count(uses, use.chunk, &Use::chunk) > 1) refuse(use);
    return;
  }
  std::vector<Use> sorted(uses.begin(), uses.end());
  std::ranges::sort(sorted, {}, [](const Use& use) { return index(use.chunk); });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (sorted[i - 1].chunk == sorted[i].chunk && (writes(sorted[i - 1].access) || writes(sorted[i].access))) refuse(sorted[i]);
}

}  // namespace

void Traffic::add(const Move& move) {
  switch (lane_of(move.from, move.to)) {
    case Lane::upload: upload += move.bytes, ++uploads; break;
    case Lane::download: download += move.bytes, ++downloads; break;
    case Lane::read: read += move.bytes, ++reads; break;
    default: write += move.bytes, ++writes; break;
  }
}

Residency::Residency(Budget budget, EvictionPolicy& policy, std::uint32_t generations)
    : budget_(in_whole_pages(budget)),
      policy_(policy),
      generations_(generations),
      space_{{Space(budget_.device), Space(budget_.host), Space(budget_.disk)}} {
  if (generations == 0) throw std::logic_error("residency: there must be at least one generation");
}

ChunkId Residency::add_run(std::uint32_t count, std::uint64_t bytes, ChunkKind kind, End end) {
  if (count == 0 || bytes == 0 || bytes % kPageBytes != 0) {
    throw std::logic_error(
        fmt::format("residency: a run of {} chunks of {} bytes each is empty or not whole pages", count, bytes));
  }
  const ChunkId first{chunks()};
  const RunId run{static_cast<std::uint32_t>(runs_.size())};
  runs_.push_back({first, count, bytes, kind, end});
  for (std::uint32_t i = 0; i < count; ++i) {
    ids_.push_back(ChunkId{chunks()});
    chunks_.emplace_back().run = run;
    clocks_.emplace_back();
    chunks_.back().kept_on_disk = kind != ChunkKind::gradient && kind != ChunkKind::activation;
  }
  return first;
}

void Residency::resize(ChunkId chunk, std::uint64_t bytes) {
  auto& run = runs_[index(at(chunk).run)];
  const bool placed = std::ranges::any_of(kAllTiers, [&](Tier t) { return copy(chunk, t).placed; });
  if (run.count != 1 || at(chunk).content || placed) broken(chunk, "is resized, but has content, a place or neighbours");
  if (bytes == 0 || bytes % kPageBytes != 0) broken(chunk, "is resized, but not to whole pages");
  run.bytes = bytes;
}

void Residency::adopt_on_disk(ChunkId chunk) {
  if (at(chunk).content || at(chunk).writing) broken(chunk, "is adopted from disk but has content already");
  reserve_on_disk(chunk);
  at(chunk).content = true;
  set_valid(chunk, Tier::disk, true);
  auto& here = clocks(chunk, Tier::disk);
  table_.set(here.ready, table_.of(here.busy));
}

void Residency::adopt_on_disk(ChunkId chunk, std::uint64_t place_offset) {
  if (copy(chunk, Tier::disk).placed) broken(chunk, "is adopted from disk but has a place there already");
  const auto reserved = space_[Tier::disk].reserve_at({place_offset, place_bytes(chunk, Tier::disk)});
  if (!reserved) broken(chunk, "is adopted from a place on disk that is not free");
  place(chunk, Tier::disk, *reserved);
  adopt_on_disk(chunk);
}

void Residency::reserve_on_disk(ChunkId chunk) { reserve_disk_place(chunk); }

void Residency::demand_grantable(std::span<const Use> uses, Tier tier) const {
  if (tier == Tier::disk) throw std::logic_error("residency: chunks cannot be used on the disk");
  for (const auto& use : uses) {
    const Chunk& chunk = at(use.chunk);
    if (needs_content(use.access) && !chunk.content) broken(use.chunk, "is requested but has no content");
    if (chunk.writing) broken(use.chunk, "is requested while a lease writes it");
    if (!writes(use.access)) continue;
    for (const Tier t : kAllTiers) {
      if (chunk.copy[t].pins > 0) broken(use.chunk, "is requested for writing while it is in use");
    }
  }
  demand_written_once(uses);
}

Residency::Granted Residency::acquire(std::span<const Use> uses, Tier tier, std::vector<Move>& moves) {
  demand_grantable(uses, tier);
  Order order{.moves = moves, .sources = tier == Tier::device ? uses : std::span<const Use>{}};

  // Requested chunks must not become victims. A request that can never fit is refused before anything changes.
  auto total = pinned_bytes_[tier];
  for (const auto& use : uses) {
    const ChunkId unit = head(use.chunk, tier);
    if (!at(unit).unit[tier].held && at(unit).unit[tier].pins == 0) total += unit_bytes(unit, tier);
    hold(unit, tier, true);
  }
  const auto let_go = [&] {
    for (const auto& use : uses) {
      for (const Tier t : {Tier::device, Tier::host}) {
        hold(head(use.chunk, t), t, false);
        settle(head(use.chunk, t), t);
      }
    }
  };
  if (total > budget_.of(tier)) {
    let_go();
    throw does_not_fit({tier, total - pinned_bytes_[tier], total - budget_.of(tier)});
  }
  for (const auto& use : uses) {
    if (use.access != Access::overwrite) continue;
    at(use.chunk).content = false;
    for (const Tier t : kAllTiers) give_up(use.chunk, t);
  }

  const bool placed = place_all(uses, tier, order) || (clear(uses, tier, order) && place_all(uses, tier, order));
  if (!placed || !bring_all(uses, tier, order)) {
    let_go();
    throw does_not_fit(*order.shortage);
  }

  Granted granted;
  granted.offsets.reserve(uses.size());
  for (const auto& use : uses) {
    granted.offsets.push_back(copy(use.chunk, tier).offset);
    table_.merge_into(granted.after, writes(use.access) ? clocks(use.chunk, tier).busy : clocks(use.chunk, tier).ready);
    at(use.chunk).content = true;  // the overwriting operation precedes everything decided from now on
    set_valid(use.chunk, tier, true);
    at(use.chunk).writing = writes(use.access);
    pin(use.chunk, tier);
    policy_.used(use.chunk, tier);
    if (head(use.chunk, tier) != use.chunk) policy_.used(head(use.chunk, tier), tier);
  }
  let_go();
  return granted;
}

bool Residency::place_all(std::span<const Use> uses, Tier tier, Order& order) {
  // On the way to the device, a host copy that is about to be uploaded should not be evicted first.
  if (tier == Tier::device) {
    for (const auto& use : uses) {
      if (needs_content(use.access) && !copy(use.chunk, tier).valid) hold(use.chunk, Tier::host, true);
    }
  }
  return std::ranges::all_of(uses, [&](const Use& use) {
    const ChunkId unit = head(use.chunk, tier);
    return copy(unit, tier).placed || room(unit, tier, order);
  });
}

// The free bytes suffice, but each hole is too small: the request's own chunks also leave the tier, and return when the free
// bytes are in one piece. Large units are placed first, because small ones fit between the chunks that other leases have
// pinned.
bool Residency::clear(std::span<const Use> uses, Tier tier, Order& order) {
  std::vector<ChunkId> units;
  for (const auto& use : uses) {
    const ChunkId unit = head(use.chunk, tier);
    if (at(unit).unit[tier].pins > 0) continue;
    if (copy(unit, tier).placed && !evict(unit, tier, order)) return false;
    units.push_back(unit);
  }
  std::ranges::stable_sort(units, std::greater{}, [&](ChunkId unit) { return unit_bytes(unit, tier); });
  return std::ranges::all_of(units, [&](ChunkId unit) { return copy(unit, tier).placed || room(unit, tier, order); });
}

// Uploads the chunks that are on the host first: then their host copies can be evicted to make room for chunks from disk.
bool Residency::bring_all(std::span<const Use> uses, Tier tier, Order& order) {
  for (const bool on_host : {true, false}) {
    for (const auto& use : uses) {
      if (!needs_content(use.access) || (on_host && !copy(use.chunk, Tier::host).valid)) continue;
      if (!bring(use.chunk, tier, order)) return false;
      if (tier == Tier::device) hold(use.chunk, Tier::host, false);
    }
  }
  return true;
}

void Residency::release(std::span<const Use> uses, Tier tier, const Clock& last) {
  for (const auto& use : uses) {
    if (copy(use.chunk, tier).pins == 0) broken(use.chunk, "is released but not leased");
    if (at(use.chunk).writing != writes(use.access)) broken(use.chunk, "is released with another access than it was granted");
  }
  const ClockTable::Named named(last);
  for (const auto& use : uses) {
    auto& here = clocks(use.chunk, tier);
    if (copy(use.chunk, tier).pins == 0) broken(use.chunk, "is released more often than it was granted");
    if (writes(use.access)) {
      table_.set(here.ready, named);
      table_.set(here.busy, named);
      at(use.chunk).writing = false;
      for (const Tier other : kAllTiers) {
        if (other != tier) give_up(use.chunk, other);
      }
    } else {
      table_.merge(here.busy, named);
    }
    unpin(use.chunk, tier);
  }
}

void Residency::drop(ChunkId chunk) {
  for (const Tier t : kAllTiers) {
    if (copy(chunk, t).pins > 0) broken(chunk, "is dropped while it is in use");
  }
  const ChunkKind kind = kind_of(chunk);
  at(chunk).content = false;
  keep_on_disk(chunk, kind != ChunkKind::gradient && kind != ChunkKind::activation);
  for (const Tier t : kAllTiers) {
    at(head(chunk, t)).unit[t].promised = false;
    give_up(chunk, t);
  }
}

bool Residency::offload(ChunkId chunk, std::vector<Move>& moves) {
  const ChunkId unit = head(chunk, Tier::device);
  if (!copy(unit, Tier::device).placed) return true;
  if (at(unit).unit[Tier::device].pins > 0) return false;
  Order order{.moves = moves};
  return evict(unit, Tier::device, order);
}

void Residency::flush(ChunkId chunk, const Clock& not_before, std::vector<Move>& moves) {
  if (!at(chunk).content) broken(chunk, "is flushed but has no content");
  if (at(chunk).writing) broken(chunk, "is flushed while a lease writes it");
  Order order{.moves = moves, .not_before = not_before};
  if (!bring(chunk, Tier::disk, order)) throw does_not_fit(*order.shortage);
}

std::uint64_t Residency::offset_on_disk(ChunkId chunk) const {
  if (!copy(chunk, Tier::disk).placed) broken(chunk, "has no place on disk");
  return copy(chunk, Tier::disk).offset;
}

}  // namespace terrace::memory
