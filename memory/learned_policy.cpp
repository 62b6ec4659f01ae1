#include <terrace/memory/learned_policy.h>

namespace terrace::memory {

void LearnedPolicy::begin_pass(const std::string& loop) {
  order_.begin_pass(loop);
  learn();
}

void LearnedPolicy::end_pass() {
  if (order_.end_pass()) learn();
  belady_.set_position(order_.position());
}

void LearnedPolicy::requested(std::span<const Use> uses, Tier tier) {
  order_.requested(uses, tier);
  belady_.set_position(order_.position());
}

void LearnedPolicy::learn() {
  std::vector<Belady::UseAt> uses;
  std::uint64_t position = 0;
  for (const auto& request : order_.program()) {
    for (const auto& use : request.uses) uses.push_back({use.chunk, request.tier, position});
    ++position;
  }
  belady_.set_program(uses, position);
}

void LearnedPolicy::prefetch_coming(Residency& residency, std::uint64_t requests, const std::function<bool(ChunkId)>& written,
                                    std::vector<Move>& moves) const {
  order_.offer_coming([&](const LearnedOrder::Request& request) {
    if (requests == 0) return false;
    --requests;
    for (const auto& use : request.uses) {
      if (!needs_content(use.access) || !residency.has_content(use.chunk) || written(use.chunk)) continue;
      if (!residency.prefetch(use.chunk, request.tier, moves)) return false;
    }
    return true;
  });
}

}  // namespace terrace::memory
