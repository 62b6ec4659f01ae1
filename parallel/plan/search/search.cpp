#include <terrace/parallel/plan/search/search.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <tuple>

#include <fmt/format.h>

#include <terrace/parallel/plan/pipeline_plans.h>
#include <terrace/parallel/plan/search/estimate.h>

namespace terrace {
namespace {

using Abandons = std::function<bool()>;

constexpr double kNearlyEqual = 1.15;  // ratio of estimates that count as equal: they are not more exact

void take(FoundPlan& found, const Plan& plan) {
  for (const auto tier : kAllTiers) found.peak[tier] = std::max(found.peak[tier], plan.peak_bytes[tier]);
}

void refuse(FoundPlan& found, std::uint64_t missing_bytes, Tier tier) {
  found.missing_bytes = missing_bytes;
  found.refusal = fmt::format("{} more {} memory", format_bytes(missing_bytes), name_of(tier));
}

FoundPlan refused(const Candidate& candidate, const std::string& why) {
  return {
      .candidate = candidate, .known = Known::refused, .refusal = why.substr(0, why.find('\n')), .missing_bytes = kUnlimited};
}

// Plans one candidate.
class Planner {
 public:
  Planner(const SearchedRun& run, const MachineProfile& profile, ThreadPool& pool, Abandons abandons)
      : run_(run), profile_(profile), pool_(pool), abandons_(std::move(abandons)) {}

  // Throws Abandoned.
  [[nodiscard]] FoundPlan planned(const Candidate& candidate) const {
    auto request = request_of(run_, candidate);
    const auto model = run_.model(candidate.place, request);
    request.advises = false;
    request.abandons = abandons_;
    set_pipeline(request, candidate, model);
    FoundPlan found{.candidate = candidate, .known = Known::simulated};
    std::vector<Plan> plans;
    if (request.mesh.pp > 1 && !request.pipeline) {
      plans = planning::search_schedule(request, model, profile_, pool_).plans;
      const auto lacks = std::ranges::find(plans, false, &Plan::fits);
      if (lacks != plans.end()) return refused(candidate, rank_lacks(lacks - plans.begin(), lacks->refusal));
    } else {
      for (std::uint32_t stage = 0; stage < request.mesh.pp; ++stage) {
        request.rank = first_rank(model, request, stage);
        plans.push_back(plan(model, request, profile_, &pool_));
        if (plans.back().fits) continue;
        found.known = Known::refused;
        refuse(found, plans.back().refusal.missing_bytes, plans.back().refusal.tier);
        return found;
      }
    }
    for (const auto& plan : plans) take(found, plan);
    const auto& slowest = *std::ranges::max_element(plans, {}, [](const Plan& p) { return p.times.seconds; });
    found.binding = slowest.link.empty() ? slowest.binding : fmt::format("{} ({})", slowest.binding, slowest.link);
    const auto step = request.mesh.pp == 1 ? planning::PipelineStep{plans.front().times.seconds, true}
                                           : planning::step_of_pipeline(request, plans, model, profile_);
    found.step_s = step.seconds;
    found.at_least = !step.together;
    return found;
  }

  // A step repeats its micro-batches, so the time of each further one is the difference of two plans.
  [[nodiscard]] FoundPlan extrapolated(const Candidate& candidate, std::uint32_t fewest) const {
    auto fewer = candidate, more = candidate;
    fewer.micro_batches = fewest;
    more.micro_batches = 2 * fewest;
    const auto one = planned(fewer);
    auto found = one.step_s == 0 ? one : planned(more);
    found.candidate = candidate;
    if (found.step_s == 0) return found;
    const auto rest = static_cast<double>(candidate.micro_batches - 2 * fewest) / fewest;
    found.step_s += rest * std::max(0.0, found.step_s - one.step_s);
    found.at_least = found.at_least || one.at_least;
    found.known = Known::extrapolated;
    return found;
  }

 private:
  void set_pipeline(PlanRequest& request, const Candidate& candidate, const Model& model) const {
    if (run_.pipelines.set) return run_.pipelines.set(request, candidate, model);
    if (request.mesh.pp == 1) return;
    auto schedule = schedule_of(run_, candidate);
    if (!schedule) return;
    auto begins = planning::balanced_stages(request, model, *schedule, profile_);
    terrace::planning::set_pipeline(request, {std::move(*schedule), std::move(begins)});
  }

  [[nodiscard]] std::string rank_lacks(std::ptrdiff_t rank, const Refusal& refusal) const {
    const bool shared = refusal.tier != Tier::device && run_.space.ranks_per_node > 1;
    return fmt::format("rank {} of the pipeline: the plan does not fit into the {} tier: {} ({} bytes) are missing{}", rank,
                       name_of(refusal.tier), format_bytes(refusal.missing_bytes), refusal.missing_bytes,
                       shared ? " on each rank" : "");
  }

  const SearchedRun& run_;
  const MachineProfile& profile_;
  ThreadPool& pool_;
  Abandons abandons_;
};

// A number of micro-batches that fills the pipeline, and is planned together with twice as many. 0: planning both would not be
// much cheaper.
std::uint32_t fewer_micro_batches(const SearchedRun& run, const Candidate& c) {
  const auto ranks = static_cast<std::uint32_t>(c.degrees.pp), repeats_after = run.pipelines.repeats_after;
  if (ranks > 1 && repeats_after == 0) return 0;
  const auto fewest = std::max(4U, ranks * repeats_after);
  return c.micro_batches >= 6 * fewest ? fewest : 0;
}

// Searches one list of candidates.
class Search {
 public:
  Search(const SearchedRun& run, const MachineProfile& profile, const SearchLimits& limits, ThreadPool& pool)
      : run_(run), profile_(profile), limits_(limits), pool_(pool), begin_s_(now()) {}

  std::vector<FoundPlan> found(const std::vector<Candidate>& all) {
    found_.resize(all.size());
    least_s_.resize(all.size());
    pool_.parallel_for(std::ssize(all), [&](std::int64_t i) {
      const auto n = static_cast<std::size_t>(i);
      std::tie(found_[n], least_s_[n]) = estimated(all[n]);
    });
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (found_[i].known == Known::estimated) order_.push_back(i);
    if (order_.empty()) return sorted();
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) { return found_[i].estimate_s; });
    // Of nearly equal estimates, those that are planned sooner come first.
    const double least = found_[order_.front()].estimate_s;
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) {
      const auto band = std::floor(std::log(found_[i].estimate_s / least) / std::log(kNearlyEqual));
      return std::pair(band, work_of_planning(found_[i].candidate));
    });
    if (limits_.plans > 0 && std::ssize(order_) > limits_.plans) order_.resize(static_cast<std::size_t>(limits_.plans));
    plan_in_order();
    return sorted();
  }

 private:
  std::vector<FoundPlan> sorted() {
    std::ranges::stable_sort(found_, {}, [](const FoundPlan& f) {
      const bool fits = f.step_s != 0;
      const int group = f.known == Known::estimated ? 1 : f.known == Known::slower ? 2 : fits ? 0 : 3;
      return std::tuple(group, group == 3 ? 0 : f.step_s, group == 3 ? f.missing_bytes : 0);
    });
    return std::move(found_);
  }

  // The work of planning relative to other candidates: the number of actions that are planned. A ring has phases for each of
  // its ranks.
  [[nodiscard]] std::uint64_t work_of_planning(const Candidate& c) const {
    const auto fewest = limits_.extrapolates ? fewer_micro_batches(run_, c) : 0;
    return std::uint64_t{fewest > 0 ? 3 * fewest : c.micro_batches} * (c.place.ring > 1 ? 2 * c.place.ring : 1);
  }
  [[nodiscard]] double now() const {
    if (limits_.now) return limits_.now();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  [[nodiscard]] bool expired() const { return limits_.seconds > 0 && now() - begin_s_ >= limits_.seconds; }

  [[nodiscard]] std::pair<FoundPlan, double> estimated(const Candidate& candidate) const try {
    const auto estimate = planning::estimate_plan(run_, candidate, profile_);
    FoundPlan found{.candidate = candidate};
    if (estimate.missing_bytes != 0) {
      found.known = Known::too_large;
      refuse(found, estimate.missing_bytes, estimate.tier);
    }
    found.step_s = found.estimate_s = estimate.step_s;
    return {found, estimate.least_s};
  } catch (const Error& error) {
    return {refused(candidate, error.what()), 0};
  }

  // Plans several candidates side by side; their plans share the one pool.
  void plan_in_order() {
    std::atomic<std::size_t> next = 0;
    pool_.parallel_for(std::min<std::int64_t>(pool_.threads(), std::ssize(order_)), [&](std::int64_t) {
      for (auto i = next++; i < order_.size() && !expired(); i = next++)
        if (!plan_one(order_[i])) return;
    });
  }

  // Returns false if the deadline has come.
  bool plan_one(std::size_t i) {
    auto& found = found_[i];
    if (cannot_be_wanted(least_s_[i])) {
      found.known = Known::slower;
      return true;
    }
    const auto candidate = found.candidate;
    const Planner planner(run_, profile_, pool_, limits_.seconds > 0 ? Abandons([this] { return expired(); }) : Abandons{});
    FoundPlan result;
    try {
      const auto fewest = limits_.extrapolates ? fewer_micro_batches(run_, candidate) : 0;
      result = fewest > 0 ? planner.extrapolated(candidate, fewest) : planner.planned(candidate);
    } catch (const Abandoned&) {
      return false;
    } catch (const Error& error) {  // no walk fits
      result = refused(candidate, error.what());
    }
    result.estimate_s = found.estimate_s;
    found = std::move(result);
    if (found.step_s == 0) return true;
    const std::scoped_lock lock(mutex_);
    best_s_.insert(std::ranges::upper_bound(best_s_, found.step_s), found.step_s);
    return true;
  }

  bool cannot_be_wanted(double least_s) {
    const std::scoped_lock lock(mutex_);
    return limits_.wanted > 0 && best_s_.size() >= limits_.wanted && 0.999999 * least_s > best_s_[limits_.wanted - 1];
  }

  const SearchedRun& run_;
  const MachineProfile& profile_;
  const SearchLimits& limits_;
  ThreadPool& pool_;
  const double begin_s_;
  std::vector<FoundPlan> found_;
  std::vector<double> least_s_;
  std::vector<std::size_t> order_;  // candidates that arithmetic does not refuse, by estimate
  std::mutex mutex_;
  std::vector<double> best_s_;  // step times, ascending
};

}  // namespace

std::vector<FoundPlan> search_plans(const SearchedRun& run, const MachineProfile& profile, ThreadPool& pool,
                                    const SearchLimits& limits) {
  return Search(run, profile, limits, pool).found(candidates(run.space));
}

}  // namespace terrace
