// Evicts by the order that a loop has been seen to have (learned_order.h): as Lru while it is not known, then as Belady.
//
// Pure. Owner: the chunk manager; must outlive the Residency that borrows it. Threads: under residency's mutex.
// Errors:  as LearnedOrder.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <terrace/memory/eviction.h>
#include <terrace/memory/learned_order.h>
#include <terrace/memory/residency.h>

namespace terrace::memory {

class LearnedPolicy final : public EvictionPolicy {
 public:
  void begin_pass(const std::string& loop);
  void end_pass();
  // Called before Residency::acquire() of these uses.
  void requested(std::span<const Use> uses, Tier tier);
  // Prefetches what the next `requests` requests need, nearest first, up to the first that would take room from an earlier one.
  // Chunks that are `written` by a lease are passed over. Does nothing while the order is not known.
  void prefetch_coming(Residency& residency, std::uint64_t requests, const std::function<bool(ChunkId)>& written,
                       std::vector<Move>& moves) const;
  [[nodiscard]] bool knows() const { return !order_.program().empty(); }

  void used(ChunkId chunk, Tier tier) override { lru_.used(chunk, tier); }
  ChunkId victim(Tier tier, std::span<const ChunkId> evictable) override { return now().victim(tier, evictable); }
  bool worth(Tier tier, ChunkId incoming, ChunkId victim) override { return now().worth(tier, incoming, victim); }
  void offer_victims(Tier tier, Leaving leaving, std::span<const ChunkId> evictable,
                     const std::function<bool(ChunkId)>& wants_more) override {
    now().offer_victims(tier, leaving, evictable, wants_more);
  }
  void may_leave(ChunkId chunk, Tier tier, Leaving leaving, bool evictable) override {
    belady_.may_leave(chunk, tier, leaving, evictable);
  }

 private:
  EvictionPolicy& now() { return knows() ? static_cast<EvictionPolicy&>(belady_) : lru_; }
  void learn();

  LearnedOrder order_;
  Lru lru_;
  Belady belady_;
};

}  // namespace terrace::memory
