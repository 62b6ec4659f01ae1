#include <terrace/parallel/plan/choose.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/plan/distances.h>
#include <terrace/parallel/plan/dry_run.h>
#include <terrace/parallel/plan/programs.h>

namespace terrace::planning {
namespace {

constexpr double kWorthwhile = 0.99;           // a less simple choice must need less than this share of the time
constexpr double kWorthADepth = 0.995;         // the same for a greater depth
constexpr std::uint64_t kTriedSteps = 3;       // the first only starts up, two count
constexpr std::uint32_t kTriedDepth = 2;       // if the depth is open, too
constexpr std::uint64_t kCoarseChunks = 1000;  // in a model, but at least four for each layer
constexpr double kTriedShares[] = {0.25, 0.5, 0.75};
constexpr std::size_t kExactPlans = 3;  // how many of the best are planned exactly until one fits
constexpr double kSurelyFaster = 0.95;  // of the time: coarse chunks suffice to compare

// The size of a coarse chunk: several chunks of the map in one, so that few are left and little is padded.
std::uint64_t coarse_chunk(const StepMap& map) {
  const auto& layout = map.layout();
  const auto group = map.data().group();
  std::uint64_t all = 0;
  for (std::uint32_t l = 0; l < map.layers(); ++l) all += layout.chunks_of(l) / group;
  const auto wanted = std::max<std::uint64_t>(kCoarseChunks, 4ULL * map.layers());
  const auto most = std::max<std::uint64_t>(1, all / wanted);
  std::uint64_t best = 1, least = ~0ULL;
  for (auto k = most; k >= std::max<std::uint64_t>(1, most / 2); --k) {
    std::uint64_t padded = 0;
    for (std::uint32_t l = 0; l < map.layers(); ++l) padded += round_up(layout.chunks_of(l) / group, k);
    if (padded < least) least = padded, best = k;
  }
  return best * layout.chunk_elements();
}

// On the host itself, updates take turns with computing, so it does not matter when they run.
bool may_choose_early(const PlanRequest& r, const MachineProfile& profile) {
  return !r.early && r.may_update_early() && profile.separate_device();
}

class Search {
 public:
  Search(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool)
      : model_(model),
        request_(request),
        profile_(profile),
        pool_(pool),
        layers_(static_cast<std::uint32_t>(model.layers.size())) {
    chunk_elements_ = coarse_chunk(StepMap(model, options(with_choice(request, {choice_of(request)}), Tier::host)));
  }

  Choices run() {
    const auto plain = choice_of(request_);
    const auto as_asked = [&] { return Choices{{{plain, request_.prefetch_depth}}, std::move(tried_)}; };
    if (!request_.update && simulate(plain, Tier::device, tried_depth()).moves_no_state) return as_asked();
    place_ = request_.update ? *request_.update : faster_tier(plain);
    if (time(plain).stalls_nowhere) return as_asked();

    search();
    try_other_tier(plain);

    Choices out;
    const auto ranked = rank();
    const auto unshared = place_;
    if (!request_.update && !ranked.empty()) place_ = shared_place(ranked.front());
    for (const auto& choice : ranked) {
      if (!out.best.empty()) {
        out.best.push_back({choice, request_.prefetch_depth, place_});
        continue;
      }
      const auto add = [&](const StepChoice& c, const UpdatePlace& place) {
        // The first layer has too few coarse chunks to show how its share fits between the others' transfers.
        const bool shares_first = place.share_of_first_layer() != place.device_share();
        out.best.push_back({c, shares_first ? request_.prefetch_depth : best_depth(c, place), place, !out.best.empty()});
      };
      add(choice, place_);
      if (place_ != unshared) add(choice, unshared);
      if (const auto simpler = updates_at_once(choice); simpler != choice && !is_surely_slower(simpler, choice))
        add(simpler, place_);
    }
    out.best.push_back({frugal(plain), request_.prefetch_depth, {}});  // if none of them fits exactly
    out.tried = std::move(tried_);
    return out;
  }

 private:
  using Count = std::optional<std::uint32_t>;
  struct Timed {
    std::optional<double> seconds = {};  // empty: it does not fit
    bool moves_no_state = false, stalls_nowhere = false, bound_by_compute = false;
  };

  struct Setting {
    StepChoice choice;
    UpdatePlace update;
    std::uint32_t depth = 0;
    bool slower_disk = false;
    friend bool operator==(const Setting&, const Setting&) = default;
  };
  struct Simulated {
    Setting setting;
    Timed timed;
  };

  [[nodiscard]] std::vector<std::pair<Order, std::uint32_t>> orders() const {
    if (request_.order) return {{*request_.order, request_.group}};
    std::vector<std::pair<Order, std::uint32_t>> all{{Order::horizontal, 0}};
    const auto m = request_.shape.micro_batches;
    for (std::uint32_t group = 2; group < m; group *= 2)
      if (m % group == 0) all.emplace_back(Order::group_vertical, group);
    if (m > 1) all.emplace_back(Order::vertical, 0);
    return all;
  }
  [[nodiscard]] std::vector<std::uint32_t> ends(const Count& forced) const {
    return forced ? std::vector{*forced} : std::vector{0U, layers_};
  }
  [[nodiscard]] std::uint32_t tried_depth() const {
    return request_.prefetch_depth == kAutoDepth ? kTriedDepth : request_.prefetch_depth;
  }

  [[nodiscard]] StepMap::Options options(const PlanRequest& request, const UpdatePlace& update) const {
    auto o = map_options(model_, request, profile_, update);
    if (chunk_elements_ != 0) o.chunk_elements = chunk_elements_;
    return o;
  }

  // The same choice with the simplest times of updates, where the request leaves them open.
  [[nodiscard]] StepChoice updates_at_once(StepChoice c) const {
    if (!deferred_) c.deferred = 0;
    if (!early_) c.early = 0;
    return c;
  }

  [[nodiscard]] bool is_surely_slower(const StepChoice& c, const StepChoice& than) {
    const auto seconds = simulate(c, place_, tried_depth()).seconds;
    return !seconds || *simulate(than, place_, tried_depth()).seconds < kSurelyFaster * *seconds;
  }

  // Simulates each setting only once.
  Timed simulate(const StepChoice& c, const UpdatePlace& update, std::uint32_t depth) { return simulate({c, update, depth}); }
  Timed simulate(const Setting& setting) {
    simulate_ahead({setting});
    return std::ranges::find(simulated_, setting, &Simulated::setting)->timed;
  }
  // Simulates these settings in parallel; they are all needed, whatever their times.
  void simulate_ahead(const std::vector<Setting>& settings) {
    const auto begin = simulated_.size();
    for (const auto& s : settings)
      if (std::ranges::find(simulated_, s, &Simulated::setting) == simulated_.end()) simulated_.push_back({s, {}});
    const auto walk_one = [&](std::int64_t i) {
      auto& [s, timed] = simulated_[begin + static_cast<std::size_t>(i)];
      timed = walk(s.choice, s.update, s.depth, s.slower_disk ? slower_disk_ : profile_);
    };
    const auto count = static_cast<std::int64_t>(simulated_.size() - begin);
    if (pool_) return pool_->parallel_for(count, walk_one);
    for (std::int64_t i = 0; i < count; ++i) walk_one(i);
  }
  [[nodiscard]] Timed walk(const StepChoice& c, const UpdatePlace& update, std::uint32_t depth,
                           const MachineProfile& profile) const {
    auto request = with_choice(request_, {c, depth});
    request.evaluate_every = request.evaluate_batches = request.commit_every = request.steps = 0;
    auto budget = request.budget;
    budget.commit_only = !request.disk_tier;
    const StepMap map(model_, options(request, update));
    const walk::ProfileCosts costs(map, profile_);
    const auto ahead = request.gather_ahead != kAutoDepth        ? request.gather_ahead
                       : request.sharding().gathers_before_use() ? 1
                                                                 : 0;
    try {
      const auto programs = write_programs(map, request, depth, ahead);
      const auto run = dry_run(map, request, programs, with_room_for_commits(budget), request.generations, costs, profile,
                               {.most_steps = kTriedSteps, .steps_only = true});
      return {run.times.seconds, !mapping::moves_state(map, programs.steady, run.steps.back()),
              run.times.compute_seconds > kWorthwhile * run.times.seconds, bound_by_compute(run.times)};
    } catch (const memory::DoesNotFit&) {
      return {};
    }
  }

  [[nodiscard]] StepChoice of_layers(StepChoice c) const {
    c.recompute = std::min(c.recompute, layers_);
    c.offload = std::min(c.offload, layers_);
    c.deferred = std::min(c.deferred, layers_);
    c.early = std::min(c.early, layers_);
    return c;
  }

  void time(const std::vector<StepChoice>& choices) {
    std::vector<Setting> settings;
    for (const auto& c : choices) settings.push_back({of_layers(c), place_, tried_depth()});
    simulate_ahead(settings);
    for (const auto& c : choices) time(c);
  }

  // Tries each choice only once.
  Timed time(StepChoice c) {
    c = of_layers(c);
    if (std::ranges::find(tried_, c, &TriedChoice::choice) != tried_.end()) return {};
    const auto timed = simulate(c, place_, tried_depth());
    tried_.push_back({c, timed.seconds});
    return timed;
  }

  // The tier of updates while choices are compared: simulates the plain choice and the one that recomputes the most on both
  // tiers, and takes the tier of the fastest.
  [[nodiscard]] Tier faster_tier(const StepChoice& plain) {
    if (updates_on_host_only(request_, profile_)) return Tier::host;
    auto small = plain;
    small.recompute = recompute_.value_or(layers_);
    Tier faster = Tier::host;
    double least = std::numeric_limits<double>::infinity();
    const auto depth = tried_depth();
    simulate_ahead(
        {{plain, Tier::host, depth}, {small, Tier::host, depth}, {plain, Tier::device, depth}, {small, Tier::device, depth}});
    for (const auto tier : {Tier::host, Tier::device})
      for (const auto& c : {plain, small}) {
        const auto timed = simulate(c, tier, tried_depth());
        // If the device has no processor of its own, copying states to it gains nothing.
        const bool senseless = tier == Tier::device && !profile_.separate_device() && !timed.moves_no_state;
        if (!timed.seconds || senseless || *timed.seconds >= least) continue;
        least = *timed.seconds;
        faster = tier;
      }
    return faster;
  }

  void search() {
    std::vector<StepChoice> corners;
    for (const auto& [order, group] : orders())
      for (const auto offload : ends(offload_))
        for (const auto recompute : ends(recompute_))
          corners.push_back({order, group, recompute, offload, deferred_.value_or(0), early_.value_or(0)});
    time(corners);
    refine();
  }

  // Another order may hide updates that slow down the plain one. If the fastest choice is faster with its updates on the other
  // tier, all choices are compared there too.
  void try_other_tier(const StepChoice& plain) {
    const auto best = std::ranges::min_element(tried_, {}, seconds_of);
    if (request_.update || !profile_.separate_device() || updates_on_host_only(request_, profile_) || !best->seconds) return;
    const UpdatePlace other = place_ == UpdatePlace(Tier::host) ? Tier::device : Tier::host;
    const auto there = simulate(best->choice, other, tried_depth());
    const auto least = *best->seconds;
    if (!there.seconds || *there.seconds >= least * kWorthwhile) return;
    auto before = std::exchange(tried_, {});
    const auto place_before = std::exchange(place_, other);
    time(plain);
    search();
    if (seconds_of(*std::ranges::min_element(tried_, {}, seconds_of)) < least) return;
    tried_ = std::move(before);
    place_ = place_before;
  }

  // The device takes a share of the updates if that is faster, because then neither it nor the host waits for the other: of all
  // updates, and of the first layer's.
  [[nodiscard]] UpdatePlace shared_place(const StepChoice& c) {
    if (!profile_.separate_device() || updates_on_host_only(request_, profile_)) return place_;
    std::vector<UpdatePlace> shares{place_}, of_first;
    for (const double share : kTriedShares) shares.emplace_back(share);
    const auto best = fastest(c, shares);
    if (request_.updates_before_use && c.early == 0) return best;  // then the first layer's update does not come last
    of_first.push_back(best);
    for (const double share : kTriedShares) of_first.emplace_back(best.device_share(), share);
    return fastest(c, of_first);
  }
  // The fastest of these places; a later one must be faster by more than 1 %.
  [[nodiscard]] UpdatePlace fastest(const StepChoice& c, const std::vector<UpdatePlace>& places) {
    std::vector<Setting> settings;
    for (const auto& place : places) settings.push_back({c, place, tried_depth()});
    simulate_ahead(settings);
    auto best = places.front();
    auto least = simulate(c, best, tried_depth()).seconds;
    for (const auto& place : places) {
      const auto seconds = simulate(c, place, tried_depth()).seconds;
      if (least && seconds && *seconds < *least * kWorthwhile) least = seconds, best = place;
    }
    return best;
  }

  // The choice that needs the least memory on the device.
  [[nodiscard]] StepChoice frugal(StepChoice c) const {
    if (!request_.order) c.order = Order::horizontal;
    c.recompute = recompute_.value_or(layers_);
    c.offload = offload_.value_or(layers_);
    return c;
  }

  // Tries numbers of layers between none and all, at a half, a quarter and an eighth of all layers from the fastest choice so
  // far.
  void refine() {
    for (std::uint32_t part = 2; part <= 8; part *= 2)
      for (const auto& [count, forced] : {std::pair{&StepChoice::recompute, recompute_},
                                          {&StepChoice::offload, offload_},
                                          {&StepChoice::deferred, deferred_},
                                          {&StepChoice::early, early_}}) {
        const auto at = std::ranges::min_element(tried_, {}, seconds_of);
        if (forced || !at->seconds) continue;
        const auto center = at->choice;
        const bool of_updates = count == &StepChoice::deferred || count == &StepChoice::early;
        if (of_updates && simulate(center, place_, tried_depth()).bound_by_compute) continue;
        const auto distance = std::max(1U, layers_ / part);
        auto less = center, more = center;
        less.*count -= std::min(center.*count, distance);
        more.*count += distance;
        time({less, more});
      }
  }
  static double seconds_of(const TriedChoice& t) { return t.seconds.value_or(std::numeric_limits<double>::infinity()); }

  // The best choices, best first; among those about as fast as the fastest, the simplest come first.
  [[nodiscard]] std::vector<StepChoice> rank() const {
    auto fitting = tried_;
    std::erase_if(fitting, [](const TriedChoice& t) { return !t.seconds; });
    if (fitting.empty()) return {};
    std::ranges::stable_sort(fitting, {}, seconds_of);
    const auto enough = *fitting.front().seconds / kWorthwhile;
    const auto slower = std::ranges::find_if(fitting, [&](const TriedChoice& t) { return *t.seconds > enough; });
    const auto effort = [&](const TriedChoice& t) {
      const auto& c = t.choice;
      const auto together = c.order == Order::horizontal ? 1
                            : c.order == Order::vertical ? request_.shape.micro_batches
                                                         : c.group;
      return std::tuple(c.recompute + c.offload, together, c.recompute, c.deferred + c.early);
    };
    std::stable_sort(fitting.begin(), slower,
                     [&](const TriedChoice& a, const TriedChoice& b) { return effort(a) < effort(b); });
    std::vector<StepChoice> ranked;
    for (const auto& t : fitting)
      if (ranked.size() < kExactPlans) ranked.push_back(t.choice);
    return ranked;
  }

  [[nodiscard]] std::uint32_t best_depth(const StepChoice& c, const UpdatePlace& place) {
    if (request_.prefetch_depth != kAutoDepth) return request_.prefetch_depth;
    std::uint32_t best = 1;
    const bool slower = request_.disk_tier;
    const auto shallow = simulate({c, place, best, slower});
    auto least = shallow.seconds;
    if (least && shallow.bound_by_compute) return best;  // deeper prefetching cannot help
    simulate_ahead({{c, place, 2, slower}, {c, place, 4, slower}, {c, place, 8, slower}});
    for (const std::uint32_t depth : {2U, 4U, 8U}) {
      const auto seconds = simulate({c, place, depth, slower}).seconds;
      // A greater depth must be faster, because it needs more room.
      if (seconds && (!least || *seconds < *least * kWorthADepth)) least = seconds, best = depth;
    }
    return best;
  }

  const Model& model_;
  const PlanRequest& request_;
  const MachineProfile& profile_;
  const MachineProfile slower_disk_ = with_slower_disk(profile_);
  ThreadPool* pool_;
  std::uint32_t layers_;
  Count recompute_ = request_.activations.empty() ? request_.recompute : 0,
        offload_ = request_.activations.empty() ? request_.offload : 0,
        deferred_ = request_.updates_before_use ? 0 : request_.deferred,
        early_ = may_choose_early(request_, profile_) ? std::nullopt : Count(request_.early.value_or(0));
  std::uint64_t chunk_elements_ = 0;
  UpdatePlace place_ = Tier::host;
  std::vector<TriedChoice> tried_;
  std::vector<Simulated> simulated_;
};

}  // namespace

bool bound_by_compute(const walk::SimulatedTimes& times) {
  return times.compute_seconds > (kWorthADepth + 0.001) * times.seconds;
}

bool updates_on_host_only(const PlanRequest& request, const MachineProfile& profile) {
  return request.layer_unit && request.layer_unit->bits_of_device && profile.separate_device();
}

bool leaves_open(const PlanRequest& r, const MachineProfile& profile) {
  if (!r.trains()) return false;
  if (r.pipeline) return false;  // the schedule is the order; layers keep activations unless the request says otherwise
  if (!r.update && profile.separate_device() && !updates_on_host_only(r, profile)) return true;  // the updates may be shared
  return !r.order || (r.activations.empty() && (!r.recompute || !r.offload)) || (!r.updates_before_use && !r.deferred) ||
         may_choose_early(r, profile);
}

StepChoice choice_of(const PlanRequest& r) {
  return {.order = r.order.value_or(Order::horizontal),
          .group = r.order == Order::group_vertical ? r.group : 0,
          .recompute = r.recompute.value_or(0),
          .offload = r.offload.value_or(0),
          .deferred = r.updates_before_use ? 0 : r.deferred.value_or(0),
          .early = r.early.value_or(0)};
}

PlanRequest with_choice(const PlanRequest& request, const RankedChoice& ranked) {
  auto closed = request;
  closed.order = ranked.choice.order;
  closed.group = ranked.choice.group;
  closed.recompute = ranked.choice.recompute;
  closed.offload = ranked.choice.offload;
  closed.deferred = ranked.choice.deferred;
  closed.early = ranked.choice.early;
  closed.prefetch_depth = ranked.prefetch_depth;
  if (!closed.update) closed.update = ranked.update;
  return closed;
}

Choices choose(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool) {
  return Search(model, request, profile, pool).run();
}

std::string to_text(const StepChoice& c, std::uint32_t layers) {
  const auto count = [&](std::uint32_t n) {
    return n == 0 ? "no layer" : n >= layers ? "every layer" : fmt::format("{} layers", n);
  };
  const auto order = c.order == Order::horizontal ? "horizontal"
                     : c.order == Order::vertical ? "vertical"
                                                  : fmt::format("vertical in groups of {}", c.group);
  const auto deferred = c.deferred == 0 ? "" : fmt::format(", {} updated in the next step", count(c.deferred));
  const auto early = c.early == 0 ? "" : fmt::format(", {} updated before the norm is known", count(c.early));
  return fmt::format("{}, {} recomputed, {} offloaded{}{}", order, count(c.recompute), count(c.offload), deferred, early);
}

}  // namespace terrace::planning
