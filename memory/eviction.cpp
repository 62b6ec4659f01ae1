#include <terrace/memory/eviction.h>

#include <vector>

namespace terrace::memory {

void EvictionPolicy::offer_victims(Tier tier, Leaving, std::span<const ChunkId> evictable,
                                   const std::function<bool(ChunkId)>& wants_more) {
  std::vector<ChunkId> left(evictable.begin(), evictable.end());
  while (!left.empty()) {
    const ChunkId best = victim(tier, left);
    if (!wants_more(best)) return;
    std::erase(left, best);
  }
}

}  // namespace terrace::memory
