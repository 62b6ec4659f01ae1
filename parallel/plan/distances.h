// Finds how far ahead a step prefetches chunks and gathers weights, if the request leaves these distances open.
//
// Owner:   a planner, while it makes one plan. Threads: the owner's; `attempt` may run on several at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <terrace/core/machine/machine.h>
#include <terrace/memory/residency.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace::planning {

struct Distances {
  std::uint32_t prefetch = 1;  // layer actions
  std::uint32_t gather = 0;    // PlanRequest::gather_ahead
  friend bool operator==(const Distances&, const Distances&) = default;
};

// The profile for comparing distances. A disk's rate varies, and a distance that just suffices at the median rate would wait
// when the disk is slower.
MachineProfile with_slower_disk(MachineProfile profile);

// The distances that the request allows. The first ones need the least memory.
std::vector<Distances> distances_of(const PlanRequest& request);

class DistanceSearch {
 public:
  struct Candidate {
    Distances at;
    Programs programs;
    double seconds = 0;  // of a step
  };
  struct Means {
    std::function<Candidate(const Distances&)> attempt;  // throws DoesNotFit
    std::function<void(std::size_t count, const std::function<void(std::size_t)>& task)> for_each;
  };
  DistanceSearch(std::vector<Distances> all, Means means) : all_(std::move(all)), means_(std::move(means)) {}

  void try_first() { try_next(1); }
  void try_rest() { try_next(all_.size() - tried_); }
  // Takes out the fastest candidate. If none is left, it tries the remaining distances first. Empty: none of them fits.
  std::optional<Candidate> take_best();
  // refuse() records why a taken candidate does not fit. refusal() returns the last reason, also of a failed attempt.
  void refuse(const memory::DoesNotFit& why) { refusal_ = why; }
  [[nodiscard]] const memory::DoesNotFit& refusal() const { return refusal_.value(); }

 private:
  void try_next(std::size_t count);

  std::vector<Distances> all_;
  Means means_;
  std::size_t tried_ = 0;  // how many of all_
  std::vector<Candidate> candidates_;
  std::optional<memory::DoesNotFit> refusal_;
};

}  // namespace terrace::planning
