#include <algorithm>
#include <stdexcept>

#include <terrace/memory/eviction.h>

namespace terrace::memory {

void Belady::set_program(std::span<const UseAt> uses, std::uint64_t length) {
  if (!std::ranges::is_sorted(uses, {}, &UseAt::position)) throw std::logic_error("belady: uses are not sorted by position");
  std::size_t chunks = 0;
  for (const auto& use : uses) chunks = std::max<std::size_t>(chunks, index(use.chunk) + 1);
  for (const Tier tier : kAllTiers) {
    uses_[tier].assign(chunks, {});
    answer_[tier].assign(chunks, 0);
  }
  const auto note = [&](Tier tier, const UseAt& use) {
    auto& positions = uses_[tier][index(use.chunk)];
    if (positions.empty() || positions.back() != use.position) positions.push_back(use.position);
  };
  for (const auto& use : uses) {
    note(use.tier, use);
    if (use.tier == Tier::device) note(Tier::host, use);  // what the device needs comes from the host
  }
  position_ = 0;
  length_ = length;
  reorder();
}

void Belady::set_position(std::uint64_t position) {
  const bool back = position < position_;
  position_ = position;
  if (!back) return;
  for (auto& answers : answer_) std::ranges::fill(answers, 0);
  reorder();
}

std::uint64_t Belady::next_use(Tier tier, ChunkId chunk) const {
  if (index(chunk) >= uses_[tier].size()) return kUnlimited;
  auto& answer = answer_[tier][index(chunk)];
  if (answer != 0 && answer >= position_) return answer;
  const auto& positions = uses_[tier][index(chunk)];
  if (positions.empty()) return answer = kUnlimited;
  const auto next = std::ranges::lower_bound(positions, position_);
  return answer = next != positions.end() ? *next : positions.front() + length_;
}

// Program order decides, timing never does: the victim is the chunk whose next use is farthest (Belady 1966).
ChunkId Belady::victim(Tier tier, std::span<const ChunkId> evictable) {
  ChunkId farthest = evictable.front();
  std::uint64_t at = next_use(tier, farthest);
  for (const ChunkId chunk : evictable.subspan(1)) {
    const auto next = next_use(tier, chunk);
    if (next > at || (next == at && chunk < farthest)) {
      farthest = chunk;
      at = next;
    }
  }
  return farthest;
}

void Belady::may_leave(ChunkId chunk, Tier tier, Leaving leaving, bool evictable) {
  auto& [places, changed, order, spare] = index_[static_cast<std::size_t>(leaving)][tier];
  if (places.size() <= index(chunk)) places.resize(index(chunk) + std::size_t{1});
  auto& place = places[index(chunk)];
  place.evictable = evictable;
  if (!place.changed) changed.push_back(chunk);
  place.changed = true;
}

void Belady::reorder() {
  for (auto& tiers : index_)
    for (auto& [places, changed, order, spare] : tiers) {
      for (const auto& [next, chunk] : order) {
        auto& place = places[index(chunk)];
        place.ordered = false;
        if (!place.changed) changed.push_back(chunk);
        place.changed = true;
      }
      order.clear();
    }
}

void Belady::refresh(Tier tier, Index& kept) {
  auto& places = kept.places;
  auto& changed = kept.changed;
  auto& order = kept.order;
  const auto put = [&](ChunkId chunk, Place& place) {
    place.next = next_use(tier, chunk);
    if (kept.spare.empty()) {
      order.emplace(place.next, chunk);
      return;
    }
    kept.spare.back().value() = {place.next, chunk};
    order.insert(std::move(kept.spare.back()));
    kept.spare.pop_back();
  };
  for (const ChunkId chunk : changed) {
    auto& place = places[index(chunk)];
    place.changed = false;
    if (place.ordered == place.evictable) continue;
    if (place.ordered)
      kept.spare.push_back(order.extract({place.next, chunk}));
    else
      put(chunk, place);
    place.ordered = place.evictable;
  }
  changed.clear();
  // A next use is valid until the position has passed it.
  std::vector<ChunkId> again;
  while (!order.empty() && order.begin()->first < position_) {
    again.push_back(order.begin()->second);
    kept.spare.push_back(order.extract(order.begin()));
  }
  for (const ChunkId chunk : again) put(chunk, places[index(chunk)]);
}

void Belady::offer_victims(Tier tier, Leaving leaving, std::span<const ChunkId>,
                           const std::function<bool(ChunkId)>& wants_more) {
  auto& kept = index_[static_cast<std::size_t>(leaving)][tier];
  refresh(tier, kept);
  const auto& order = kept.order;
  for (auto at = order.rbegin(); at != order.rend(); ++at)
    if (!wants_more(at->second)) return;
}

bool Belady::worth(Tier tier, ChunkId incoming, ChunkId victim) { return next_use(tier, incoming) < next_use(tier, victim); }

}  // namespace terrace::memory
