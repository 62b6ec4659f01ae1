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

constexpr double kWorthwhile = 0.99;      // a less simple choice must need less than this share of the time
constexpr double kWorthADepth = 0.995;    // the same for a greater depth
constexpr std::uint64_t kTriedSteps = 3;  // the first only starts up, two count
constexpr std::uint32_t kTriedDepth = 4;  // if the depth is open, too
constexpr std::size_t kFinalists = 3;     // how many of the best are compared with fine chunks
constexpr std::uint64_t kCoarseChunks = 500, kFineChunks = 2000;  // in a model, but at least four for each layer

// The size of a chunk of which a model has about as many: several chunks of the map in one, so that little is padded.
std::uint64_t chunk_of(const StepMap& map, std::uint64_t chunks) {
  const auto& layout = map.layout();
  const auto group = map.data().group();
  std::uint64_t all = 0;
  for (std::uint32_t l = 0; l < map.layers(); ++l) all += layout.chunks_of(l) / group;
  const auto wanted = std::max<std::uint64_t>(chunks, 4ULL * map.layers());
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
    const StepMap map(model, map_options(model, with_choice(request, {choice_of(request)}), profile, Tier::host));
    coarse_ = chunk_of(map, kCoarseChunks);
    fine_ = chunk_of(map, kFineChunks);
  }

  Choices run() {
    const auto plain = choice_of(request_);
    // Nothing can be faster than the plain choice if it never waits.
    if ((!request_.update && simulate(plain, Tier::device, tried_depth()).moves_no_state) ||
        simulate(plain, request_.update.value_or(Tier::host), tried_depth()).stalls_nowhere)
      return {{{plain, request_.prefetch_depth}}, {}};
    search(plain);
    if (fastest().choice == plain && simulate(plain, fastest().place, tried_depth()).stalls_nowhere)
      return {{{plain, request_.prefetch_depth}}, tried_choices()};

    Choices out;
    for (const auto& c : finals()) {
      // With a disk, a few steps do not tell which depth is the fastest: the exact plan tries all.
      const bool first = out.best.empty() && !request_.disk_tier;
      out.best.push_back({c.choice, first ? best_depth(c.choice, c.place) : request_.prefetch_depth, c.place});
    }
    out.best.push_back({frugal(plain), request_.prefetch_depth, {}});  // if none of them fits exactly
    out.tried = tried_choices();
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
    bool fine = false;
    friend bool operator==(const Setting&, const Setting&) = default;
  };
  struct Simulated {
    Setting setting;
    Timed timed;
  };
  struct Candidate {
    StepChoice choice;
    UpdatePlace place = Tier::host;
    std::optional<double> seconds = {};  // empty: it does not fit
    [[nodiscard]] bool same_as(const Candidate& other) const { return choice == other.choice && place == other.place; }
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

  // The same choice with the simplest times of updates, where the request leaves them open.
  [[nodiscard]] StepChoice updates_at_once(StepChoice c) const {
    if (!deferred_) c.deferred = 0;
    if (!early_) c.early = 0;
    return c;
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
      timed = walk(s);
    };
    const auto count = static_cast<std::int64_t>(simulated_.size() - begin);
    if (pool_) return pool_->parallel_for(count, walk_one);
    for (std::int64_t i = 0; i < count; ++i) walk_one(i);
  }
  [[nodiscard]] Timed walk(const Setting& s) const {
    auto request = with_choice(request_, {s.choice, s.depth});
    request.evaluate_every = request.evaluate_batches = request.commit_every = request.steps = 0;
    auto budget = request.budget;
    budget.commit_only = !request.disk_tier;
    auto options = map_options(model_, request, profile_, s.update);
    options.chunk_elements = s.fine ? fine_ : coarse_;
    const StepMap map(model_, options);
    const walk::ProfileCosts costs(map, profile_);
    const auto ahead = request.gather_ahead != kAutoDepth        ? request.gather_ahead
                       : request.sharding().gathers_before_use() ? 1
                                                                 : 0;
    try {
      const auto programs = write_programs(map, request, s.depth, ahead);
      const auto run = dry_run(map, request, programs, with_room_for_commits(budget), request.generations, costs, profile_,
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

  // Tries each candidate only once.
  void time(std::vector<Candidate> candidates) {
    for (auto& c : candidates) c.choice = of_layers(c.choice);
    std::vector<Setting> settings;
    for (const auto& c : candidates) settings.push_back({c.choice, c.place, tried_depth()});
    simulate_ahead(settings);
    for (const auto& c : candidates) {
      if (std::ranges::any_of(tried_, [&](const Candidate& t) { return t.same_as(c); })) continue;
      const auto timed = simulate(c.choice, c.place, tried_depth());
      // If the device has no processor of its own, copying states to it gains nothing.
      const bool senseless = !profile_.separate_device() && c.place == UpdatePlace(Tier::device) && !timed.moves_no_state;
      tried_.push_back({c.choice, c.place, senseless ? std::nullopt : timed.seconds});
    }
  }

  // Each choice with its best place.
  [[nodiscard]] std::vector<TriedChoice> tried_choices() const {
    std::vector<TriedChoice> all;
    for (const auto& c : tried_) {
      const auto known = std::ranges::find(all, c.choice, &TriedChoice::choice);
      if (known == all.end())
        all.push_back({c.choice, c.seconds});
      else if (c.seconds && (!known->seconds || *c.seconds < *known->seconds))
        known->seconds = c.seconds;
    }
    return all;
  }

  // Begins with all or no layers, all updates on one tier, and the simplest order. Early updates change which of these is the
  // fastest, so some begin with them. Other orders begin with the fastest place and time of updates.
  void search(const StepChoice& plain) {
    const auto corners = [&](const Candidate& from) {
      std::vector<Candidate> all;
      for (const auto offload : ends(offload_))
        for (const auto recompute : ends(recompute_)) {
          all.push_back(from);
          all.back().choice.offload = offload, all.back().choice.recompute = recompute;
        }
      time(all);
    };
    const Candidate first{plain, request_.update.value_or(Tier::host)};
    time({first});
    corners(first);
    if (!early_) {
      auto early = first;
      early.choice.early = layers_ * 2 / 3;
      corners(early);
    }
    if (!request_.update && !updates_on_host_only(request_, profile_)) corners({plain, Tier::device});
    const auto best = fastest();
    for (const auto& [order, group] : orders()) {
      auto other = best;
      other.choice.order = order, other.choice.group = group;
      corners(other);
    }
    refine();
  }

  [[nodiscard]] bool place_is_open() const {
    return !request_.update && profile_.separate_device() && !updates_on_host_only(request_, profile_);
  }

  // The choice that needs the least memory on the device.
  [[nodiscard]] StepChoice frugal(StepChoice c) const {
    if (!request_.order) c.order = Order::horizontal;
    c.recompute = recompute_.value_or(layers_);
    c.offload = offload_.value_or(layers_);
    return c;
  }

  // Tries numbers of layers between none and all, and shares of the updates, at a half, a quarter and an eighth from the
  // fastest candidate so far. Where the device takes a share, neither it nor the host waits for the other.
  void refine() {
    for (std::uint32_t part = 2; part <= 8; part *= 2) {
      for (const auto& [count, forced] : {std::pair{&StepChoice::recompute, recompute_},
                                          {&StepChoice::offload, offload_},
                                          {&StepChoice::deferred, deferred_},
                                          {&StepChoice::early, early_}}) {
        const auto center = fastest();
        if (forced || !center.seconds) continue;
        const bool of_updates = count == &StepChoice::deferred || count == &StepChoice::early;
        if (of_updates && is_bound_by_compute(center)) continue;
        const auto distance = std::max(1U, layers_ / part);
        auto less = center, more = center;
        less.choice.*count -= std::min(center.choice.*count, distance);
        more.choice.*count += distance;
        time({less, more});
      }
      for (const bool of_all : {true, false}) {
        const auto center = fastest();
        if (!place_is_open() || !center.seconds || is_bound_by_compute(center)) continue;
        const double all = center.place.device_share(), first = center.place.share_of_first_layer();
        std::vector<Candidate> beside;
        for (const double by : {-1.0 / part, 1.0 / part}) {
          const double share = std::clamp((of_all ? all : first) + by, 0.0, 1.0);
          beside.push_back({center.choice, of_all ? UpdatePlace(share) : UpdatePlace(all, share)});
        }
        time(std::move(beside));
      }
    }
  }
  [[nodiscard]] bool is_bound_by_compute(const Candidate& c) {
    return simulate(c.choice, c.place, tried_depth()).bound_by_compute;
  }
  [[nodiscard]] Candidate fastest() const {
    return *std::ranges::min_element(
        tried_, {}, [](const Candidate& c) { return c.seconds.value_or(std::numeric_limits<double>::infinity()); });
  }

  // Those that fit, best first; among those about as fast as the fastest, the simplest come first.
  [[nodiscard]] std::vector<Candidate> best_first(std::vector<Candidate> all) const {
    std::erase_if(all, [](const Candidate& c) { return !c.seconds; });
    if (all.empty()) return all;
    std::ranges::stable_sort(all, {}, &Candidate::seconds);
    const auto enough = *all.front().seconds / kWorthwhile;
    const auto slower = std::ranges::find_if(all, [&](const Candidate& c) { return *c.seconds > enough; });
    const auto effort = [&](const Candidate& candidate) {
      const auto& c = candidate.choice;
      const auto together = c.order == Order::horizontal ? 1
                            : c.order == Order::vertical ? request_.shape.micro_batches
                                                         : c.group;
      const auto shares = static_cast<int>(shares_any(candidate.place.device_share())) +
                          static_cast<int>(candidate.place.share_of_first_layer() != candidate.place.device_share());
      return std::tuple(c.recompute + c.offload, together, c.recompute, c.deferred + c.early, shares);
    };
    std::stable_sort(all.begin(), slower, [&](const Candidate& a, const Candidate& b) { return effort(a) < effort(b); });
    return all;
  }

  static bool shares_any(double share) { return share != 0 && share != 1; }

  // The best few, compared once more with fine chunks: coarse ones tell too little about choices that take about the same time.
  [[nodiscard]] std::vector<Candidate> finals() {
    auto coarse = best_first(tried_);
    if (coarse.empty()) return {};
    if (coarse.size() > kFinalists) coarse.resize(kFinalists);
    auto fine = coarse;
    if (const Candidate simpler{updates_at_once(coarse.front().choice), coarse.front().place};
        std::ranges::none_of(fine, [&](const Candidate& c) { return c.same_as(simpler); }))
      fine.push_back(simpler);
    std::vector<Setting> settings;
    for (const auto& c : fine) settings.push_back({c.choice, c.place, tried_depth(), true});
    simulate_ahead(settings);
    for (std::size_t i = 0; i < fine.size(); ++i) fine[i].seconds = simulate(settings[i]).seconds;
    fine = best_first(std::move(fine));
    return fine.empty() ? coarse : fine;
  }

  [[nodiscard]] std::uint32_t best_depth(const StepChoice& c, const UpdatePlace& place) {
    if (request_.prefetch_depth != kAutoDepth) return request_.prefetch_depth;
    std::uint32_t best = 1;
    const auto at = [&](std::uint32_t depth) { return Setting{c, place, depth, true}; };
    const auto shallow = simulate(at(best));
    auto least = shallow.seconds;
    if (least && shallow.bound_by_compute) return best;  // deeper prefetching cannot help
    simulate_ahead({at(2), at(4), at(8)});
    for (const std::uint32_t depth : {2U, 4U, 8U}) {
      const auto seconds = simulate(at(depth)).seconds;
      // A greater depth must be faster, because it needs more room.
      if (seconds && (!least || *seconds < *least * kWorthADepth)) least = seconds, best = depth;
    }
    return best;
  }

  const Model& model_;
  const PlanRequest& request_;
  const MachineProfile& profile_;
  ThreadPool* pool_;
  std::uint32_t layers_;
  Count recompute_ = request_.activations.empty() ? request_.recompute : 0,
        offload_ = request_.activations.empty() ? request_.offload : 0,
        deferred_ = request_.updates_before_use ? 0 : request_.deferred,
        early_ = may_choose_early(request_, profile_) ? std::nullopt : Count(request_.early.value_or(0));
  std::uint64_t coarse_ = 0, fine_ = 0;  // elements of a chunk
  std::vector<Candidate> tried_;
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
