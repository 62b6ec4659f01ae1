#include <terrace/memory/eviction.h>

#include <algorithm>
#include <iterator>

namespace terrace {

std::optional<ChunkId> EvictionPolicy::victim_among(Tier tier, Leaving, std::span<const ChunkId> evictable,
                                                    const std::function<bool(ChunkId)>& admits) {
  std::vector<ChunkId> admitted;
  std::ranges::copy_if(evictable, std::back_inserter(admitted), admits);
  if (admitted.empty()) return std::nullopt;
  return victim(tier, admitted);
}

}  // namespace terrace
