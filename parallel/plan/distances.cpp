#include <terrace/parallel/plan/distances.h>

#include <utility>

namespace terrace::planning {

MachineProfile with_slower_disk(MachineProfile profile) {
  constexpr double kSlower = 0.7;  // measured: disks vary by 14 to 31 % of their median rate within seconds
  for (auto* const rate : {&profile.disk_read, &profile.disk_write, &profile.disk_both}) *rate *= kSlower;
  return profile;
}

std::vector<Distances> distances_of(const PlanRequest& request) {
  const auto sharding = request.sharding();
  std::vector<std::uint32_t> prefetches{request.prefetch_depth}, gathers{request.gather_ahead};
  if (request.prefetch_depth == kAutoDepth) prefetches = {1, 2, 4, 8};
  if (request.gather_ahead == kAutoDepth)
    gathers = sharding.gathers_before_use()                 ? std::vector{0U, 1U, 2U}
              : sharding.folds_each() && sharding.all() > 1 ? std::vector{0U, 1U}
                                                            : std::vector{0U};
  std::vector<Distances> all;
  for (const auto prefetch : prefetches)
    for (const auto gather : gathers) all.push_back({prefetch, gather});
  return all;
}

// Tries the next `count` distances in parallel, with the same result as one after another.
void DistanceSearch::try_next(std::size_t count) {
  std::vector<std::optional<Candidate>> fitting(count);
  std::vector<std::optional<memory::DoesNotFit>> refusals(count);
  means_.for_each(count, [&](std::size_t i) {
    try {
      fitting[i] = means_.attempt(all_[tried_ + i]);
    } catch (const memory::DoesNotFit& e) {
      refusals[i] = e;
    }
  });
  for (auto& candidate : fitting)
    if (candidate) candidates_.push_back(std::move(*candidate));
  for (const auto& refusal : refusals)
    if (refusal) refusal_ = refusal;
  tried_ += count;
}

std::optional<DistanceSearch::Candidate> DistanceSearch::take_best() {
  if (candidates_.empty()) try_rest();
  if (candidates_.empty()) return std::nullopt;
  // A greater distance must be faster by 0.5 %, because it needs more room.
  const auto slower = [](const Candidate& a, const Candidate& b) { return b.seconds >= a.seconds * 0.995; };
  auto best = candidates_.begin();
  for (auto c = candidates_.begin(); c != candidates_.end(); ++c)
    if (!slower(*best, *c)) best = c;
  std::optional<Candidate> taken = std::move(*best);
  candidates_.erase(best);
  return taken;
}

}  // namespace terrace::planning
