#include <terrace/examples/terrace/plan/plan_search.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/models/model.h>
#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/device.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/plan_estimate.h>
#include <terrace/examples/terrace/plan/plan_pipeline.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::cli {
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

// Plans as `terrace plan` does it. Throws Abandoned.
FoundPlan planned(const RunConfig& config, const MachineProfile& profile, ThreadPool& pool, const Abandons& abandons) {
  FoundPlan found{.config = config, .known = Known::simulated};
  const auto model = lm::make_model(model_config(config));
  auto request = plan_request(config);
  request.advises = false;
  request.abandons = abandons;
  std::vector<Plan> plans;
  if (searches_schedule(config)) {
    plans = search_schedule(request, config, model, profile, pool).plans;
  } else {
    set_pipeline(request, config, model, profile);
    for (std::uint32_t stage = 0; stage < request.mesh.pp; ++stage) {
      request.rank = first_rank(model, request, stage);
      plans.push_back(plan(model, request, profile, &pool));
      if (plans.back().fits) continue;
      found.known = Known::refused;
      refuse(found, plans.back().refusal.missing_bytes, plans.back().refusal.tier);
      return found;
    }
  }
  for (const auto& plan : plans) take(found, plan);
  const auto& slowest = *std::ranges::max_element(plans, {}, [](const Plan& p) { return p.times.seconds; });
  found.binding = slowest.link.empty() ? slowest.binding : fmt::format("{} ({})", slowest.binding, slowest.link);
  const auto step = config.parallel.pp == 1 ? PipelineStep{plans.front().times.seconds, true}
                                            : step_of_pipeline(request, plans, model, profile);
  found.step_s = step.seconds;
  found.at_least = !step.together;
  return found;
}

// A number of micro-batches that fills the pipeline, and is planned together with twice as many. 0: planning both would not be
// much cheaper.
std::int64_t fewer_micro_batches(const RunConfig& c) {
  const bool named = c.parallel.pp == 1 || searches_schedule(c) ||
                     std::ranges::any_of(pipeline::all_orders(),
                                         [&](const auto& o) { return o.name == c.parallel.schedule && !o.asynchronous; });
  const auto fewest = std::max<std::int64_t>(4, 2 * c.parallel.pp * std::max<std::int64_t>(1, c.parallel.virtual_stages));
  return named && c.train.grad_accumulation >= 6 * fewest ? fewest : 0;
}

// A step repeats its micro-batches, so the time of each further one is the difference of two plans.
FoundPlan extrapolated(const RunConfig& config, std::int64_t fewest, const MachineProfile& profile, ThreadPool& pool,
                       const Abandons& abandons) {
  auto fewer = config, more = config;
  fewer.train.grad_accumulation = fewest;
  more.train.grad_accumulation = 2 * fewest;
  const auto one = planned(fewer, profile, pool, abandons);
  auto found = one.step_s == 0 ? one : planned(more, profile, pool, abandons);
  found.config = config;
  if (found.step_s == 0) return found;
  const auto rest = static_cast<double>(config.train.grad_accumulation - 2 * fewest) / static_cast<double>(fewest);
  found.step_s += rest * std::max(0.0, found.step_s - one.step_s);
  found.at_least = found.at_least || one.at_least;
  found.known = Known::extrapolated;
  return found;
}

FoundPlan refused(const RunConfig& config, const std::string& why) {
  return {.config = config, .known = Known::refused, .refusal = why.substr(0, why.find('\n')), .missing_bytes = kUnlimited};
}

// Searches one list of candidates.
class Search {
 public:
  Search(const MachineProfile& profile, const SearchLimits& limits, ThreadPool& pool)
      : profile_(profile), limits_(limits), pool_(pool), begin_s_(now()) {}

  std::vector<FoundPlan> run(std::vector<RunConfig> configs) {
    found_.resize(configs.size());
    least_s_.resize(configs.size());
    pool_.parallel_for(static_cast<std::int64_t>(configs.size()), [&](std::int64_t i) {
      const auto n = static_cast<std::size_t>(i);
      std::tie(found_[n], least_s_[n]) = estimated(configs[n]);
    });
    for (std::size_t i = 0; i < found_.size(); ++i)
      if (found_[i].known == Known::estimated) order_.push_back(i);
    if (order_.empty()) return sorted();
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) { return found_[i].estimate_s; });
    // Of nearly equal estimates, those that are planned sooner come first.
    const double least = found_[order_.front()].estimate_s;
    std::ranges::stable_sort(order_, {}, [&](std::size_t i) {
      const auto band = std::floor(std::log(found_[i].estimate_s / least) / std::log(kNearlyEqual));
      return std::pair(band, work_of_planning(found_[i].config));
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
  [[nodiscard]] std::int64_t work_of_planning(const RunConfig& c) const {
    const auto fewest = limits_.extrapolates ? fewer_micro_batches(c) : 0;
    return (fewest > 0 ? 3 * fewest : c.train.grad_accumulation) * (c.parallel.ring() > 1 ? 2 * c.parallel.ring() : 1);
  }
  [[nodiscard]] double now() const {
    if (limits_.now) return limits_.now();
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  [[nodiscard]] bool expired() const { return limits_.seconds > 0 && now() - begin_s_ >= limits_.seconds; }

  [[nodiscard]] std::pair<FoundPlan, double> estimated(const RunConfig& given) const try {
    const auto config = with_chosen_tiles(given);
    const auto estimate = estimate_plan(config, profile_);
    FoundPlan found{.config = config};
    if (estimate.missing_bytes != 0) {
      found.known = Known::too_large;
      refuse(found, estimate.missing_bytes, estimate.tier);
    }
    found.step_s = found.estimate_s = estimate.step_s;
    return {found, estimate.least_s};
  } catch (const Error& error) {
    return {refused(given, error.what()), 0};
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
    const auto config = found.config;
    const Abandons abandons = limits_.seconds > 0 ? [this] { return expired(); } : Abandons{};
    FoundPlan result;
    try {
      const auto fewest = limits_.extrapolates ? fewer_micro_batches(config) : 0;
      result =
          fewest > 0 ? extrapolated(config, fewest, profile_, pool_, abandons) : planned(config, profile_, pool_, abandons);
    } catch (const Abandoned&) {
      return false;
    } catch (const Error& error) {  // no schedule or no walk fits
      result = refused(config, error.what());
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

std::vector<FoundPlan> search_plans(const RunConfig& given, const SearchSpace& space, const MachineProfile& profile,
                                    const SearchLimits& limits) {
  auto pool = make_pool(given);
  return Search(profile, limits, pool).run(candidates(given, space));
}

}  // namespace terrace::cli
