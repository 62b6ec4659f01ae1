#include <algorithm>

#include <terrace/memory/eviction.h>

namespace terrace::memory {

void Lru::used(ChunkId chunk, Tier tier) {
  if (index(chunk) >= last_.size()) last_.resize(index(chunk) + 1);
  last_[index(chunk)][tier] = ++tick_;
}

ChunkId Lru::victim(Tier tier, std::span<const ChunkId> evictable) {
  const auto last_use = [&](ChunkId c) { return index(c) < last_.size() ? last_[index(c)][tier] : 0; };
  return *std::ranges::min_element(evictable, {}, [&](ChunkId c) { return std::pair{last_use(c), index(c)}; });
}

bool Lru::worth(Tier, ChunkId, ChunkId) { return false; }

}  // namespace terrace::memory
