#include <terrace/parallel/plan/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <optional>

#include <terrace/core/device/thread_pool.h>
#include <terrace/parallel/map/program_bytes.h>
#include <terrace/parallel/plan/check_request.h>
#include <terrace/parallel/plan/choose.h>
#include <terrace/parallel/plan/distances.h>
#include <terrace/parallel/plan/dry_run.h>
#include <terrace/parallel/walk/walk.h>

namespace terrace {
namespace {

constexpr std::uint32_t kTriedRanks = 8;
// The whole life of the chosen plan is walked if it has at most this many actions; that takes a second or two.
constexpr std::uint64_t kWalkedActions = 400'000;

// If a model does not fit and has more chunks than this, no budget is searched, because that takes many walks.
constexpr std::uint32_t kSearchedChunks = 200'000;

// The bytes of all chunks together in one tier.
std::uint64_t everything(const StepMap& map) {
  std::uint64_t bytes = 0;
  for (std::uint32_t c = 0; c < map.chunks().size(); ++c) bytes += std::max(map.chunks()[ChunkId(c)].bytes, kPageBytes);
  return bytes;
}

std::string largest_consumers(const StepMap& map, const Action& action) {
  std::map<std::string, std::uint64_t> by_kind;
  for (const auto& use : map.uses(action))
    by_kind[std::string(name_of(map.chunks()[use.chunk].kind))] += map.chunks()[use.chunk].bytes;
  std::vector<std::pair<std::uint64_t, std::string>> sorted;
  for (const auto& [kind, bytes] : by_kind) sorted.emplace_back(bytes, kind);
  std::ranges::sort(sorted, std::greater<>());
  std::string text;
  for (const auto& [bytes, kind] : sorted) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, format_bytes(bytes));
  return fmt::format("largest action '{}' of {} uses {}", to_text(action), map.model().layers[action.layer]->name(), text);
}

// The busiest link. Every copy to and from a device also uses the bandwidth of the host's memory.
std::string busiest_link(const Plan& p, const MachineProfile& profile) {
  if (p.binding == name_of(Lane::compute)) return "";
  if (std::ranges::any_of(kCollectiveLanes, [&](Lane lane) { return p.binding == name_of(lane); })) return "";
  const auto& busy = p.times.busy_s;
  const auto at = [&](Lane lane) { return busy[index(lane)]; };
  const double copied = at(Lane::upload) * profile.upload + at(Lane::download) * profile.download;
  const bool gpu = profile.separate_device();
  const std::array<std::pair<double, const char*>, 3> links{
      {{gpu ? std::max(at(Lane::upload), at(Lane::download)) : 0, "PCIe"},
       {gpu ? at(Lane::update) + copied / profile.memory_stream : at(Lane::upload) + at(Lane::download), "host memory"},
       {std::max(at(Lane::read), at(Lane::write)), "disk"}}};
  return std::ranges::max_element(links, {}, [](const auto& l) { return l.first; })->second;
}

void set_times(Plan& p, const walk::SimulatedTimes& times, const MachineProfile& profile) {
  p.times = times;
  p.floor_s = times.compute_seconds;
  p.binding = "compute";
  double most = 0;
  for (const auto& [cause, seconds] : times.stall_s)
    if (seconds > most) {
      most = seconds;
      p.binding = cause;
    }
  if (most < 0.05 * times.seconds) p.binding = "compute";
  p.link = busiest_link(p, profile);
}

void set_average(Plan& p, const PlanRequest& request, const planning::DryRun& life) {
  p.average.every = request.average_every;
  p.average.seconds = life.average.seconds;
  p.average.traffic = life.average_traffic;
}

class Planner {
 public:
  Planner(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool = nullptr)
      : model_(model), request_(request), profile_(profile), pool_(pool) {}

  Plan run() {
    planning::check_request(model_, request_);
    if (request_.update) return attempt(*request_.update);
    if (planning::updates_on_host_only(request_, profile_)) return attempt(Tier::host);
    // If everything fits on the device, updates run there, else on the host. A device with its own processor may be the faster
    // place even then, if its link is faster than the host's memory.
    Plan on_device, on_host;
    const bool side_by_side = pool_ && pool_->threads() > 1 && profile_.separate_device();
    for_each(side_by_side ? 2 : 1, [&](std::size_t i) {
      if (i == 0) on_device = attempt(Tier::device);
      if (i == 1) on_host = attempt(Tier::host);
    });
    if (on_device.fits && moves_no_state(on_device)) return on_device;
    if (!side_by_side) on_host = attempt(Tier::host);
    const bool device_is_faster = on_device.fits && (!on_host.fits || on_device.times.seconds < on_host.times.seconds);
    return profile_.separate_device() && device_is_faster ? on_device : on_host;
  }

  Plan of_rank(Plan p, std::uint32_t rank) const {
    p.map.rank = rank;
    const StepMap map(model_, p.map);
    const walk::ProfileCosts costs(map, profile_);
    auto programs = planning::write_programs(map, request_, p.prefetch_depth, p.gather_ahead);
    p.capacity.disk = with_room_for_commits(budget()).disk;  // this rank may need more than the first one
    const auto life =
        planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, profile_, {whole_life(programs)});
    const auto times = p.times;
    const auto resumed = extent_of_resumed(p, map, programs, costs);
    adopt(p, std::move(programs), life, resumed);
    p.times = times;
    return p;
  }

 private:
  [[nodiscard]] bool moves_no_state(const Plan& p) const {
    return !mapping::moves_state(StepMap(model_, p.map), p.programs.steady, p.steady_traffic);
  }

  // The rank of data rank `number`, among the ranks with the same layers and the same part of them.
  [[nodiscard]] std::uint32_t data_rank(std::uint32_t number) const {
    return request_.mesh.at(request_.rank, kDataAxes, number);
  }

  [[nodiscard]] Budget budget() const {
    auto b = in_whole_pages(request_.budget);
    b.commit_only = !request_.disk_tier;
    return b;
  }

  Plan attempt(const UpdatePlace& update) {
    Plan p;
    p.map = planning::map_options(model_, request_, profile_, update);
    p.generations = request_.generations;
    const StepMap map(model_, p.map);
    p.map.chunk_elements = map.layout().chunk_elements();
    p.map.recipe = map.options().recipe;
    p.map.activations = map.options().activations;
    p.state_bytes = map.chunks().state_bytes();
    p.parameters = p.trained_parameters = 0;  // of the whole model, even if each rank has only a part
    for (std::uint32_t l = 0; l < map.layers(); ++l)
      for (const auto& param : map.layout().params(l))
        if (!param.tied) {
          const auto elements = static_cast<std::uint64_t>(model::whole_shape(param.shape, param.split).elements()) *
                                std::max<std::size_t>(1, param.dealt.size());
          p.parameters += elements;
          if (!param.frozen) p.trained_parameters += elements;
        }

    const walk::ProfileCosts costs(map, profile_);
    // Arenas are as large as the distance needs that is given, or the smallest one.
    auto programs =
        planning::write_programs(map, request_, request_.prefetch_depth == kAutoDepth ? 1 : request_.prefetch_depth);
    set_smallest(p, map, programs);
    if (const auto impossible = by_arithmetic(p, map)) {
      refuse(p, map, programs, costs, *impossible);
      return p;
    }
    try {
      const auto first = choose_capacity(p, map, programs, costs);
      choose_depth(p, map, costs, first.times);
    } catch (const memory::DoesNotFit& e) {
      refuse(p, map, programs, costs, e);
      return p;
    }
    p.fits = true;
    p.steady_links = mapping::link_bytes(profile_.links, map, p.programs.steady);
    if (request_.average_every != 0) add_average(p, map);
    set_times(p, p.times, profile_);
    return p;
  }

  // For a model with so many chunks that walks take long: finds without a walk an action that is larger than its tier, or state
  // that is larger than all tiers together.
  [[nodiscard]] std::optional<memory::DoesNotFit> by_arithmetic(const Plan& p, const StepMap& map) const {
    if (map.chunks().size() <= kSearchedChunks) return std::nullopt;
    const auto b = budget();
    for (const auto tier : {Tier::device, Tier::host})
      if (const auto least = p.smallest_bytes[tier]; least > b.of(tier))
        return memory::DoesNotFit(tier, least - b.of(tier),
                                  fmt::format("{} tier: the largest action needs {}, and the budget is {}", name_of(tier),
                                              format_bytes(least), format_bytes(b.of(tier))));
    if (!request_.trains()) return std::nullopt;
    std::uint64_t state = 0;
    for (std::uint32_t c = 0; c < map.chunks().size(); ++c)
      if (map.committed(ChunkId(c))) state += map.chunks()[ChunkId(c)].bytes;
    const auto disk = b.commit_only || b.disk == 0 ? 0 : b.disk;
    if (b.device == kUnlimited || b.host == kUnlimited || disk == kUnlimited) return std::nullopt;
    const auto room = b.device + b.host + disk / p.generations;
    if (state <= room) return std::nullopt;
    const auto lowest = b.commit_only || b.disk == 0 ? Tier::host : Tier::disk;
    return memory::DoesNotFit(lowest, (state - room) * (lowest == Tier::disk ? p.generations : 1),
                              fmt::format("weights and optimizer states take {}, and all tiers together have room for {}",
                                          format_bytes(state), format_bytes(room)));
  }

  void add_average(Plan& p, const StepMap& map) const {
    for (const auto& sum : mapping::average_of(map)) {
      p.average.summed_bytes += sum.bytes;
      p.average.links += mapping::link_bytes(profile_.links, sum);
    }
    const auto every = static_cast<double>(request_.average_every);
    p.steady_links += {p.average.links.within / every, p.average.links.between / every};
  }

  void set_smallest(Plan& p, const StepMap& map, const planning::Programs& programs) const {
    for (const auto* program : {&programs.steady, &programs.drain, &programs.fill, &programs.evaluate, &programs.visit,
                                &programs.average, &programs.decode})
      for (const auto tier : {Tier::device, Tier::host})
        p.smallest_bytes[tier] = std::max(p.smallest_bytes[tier], mapping::largest_use(map, *program, tier));
    std::uint64_t one_chunk = 0;
    for (const auto kind : p.map.recipe.kinds())
      one_chunk = std::max(one_chunk, p.map.recipe.chunk_bytes(kind, map.layout().chunk_elements()));
    p.smallest_bytes[Tier::device] += one_chunk;
  }

  void for_each(std::size_t count, const std::function<void(std::size_t)>& task) const {
    if (pool_ && count > 1)
      return pool_->parallel_for(static_cast<std::int64_t>(count), [&](std::int64_t i) { task(static_cast<std::size_t>(i)); });
    for (std::size_t i = 0; i < count; ++i) task(i);
  }

  // Chooses the sizes of the arenas: at most the budget, and at most what a run without limits needs. Returns the short life of
  // the programs with these sizes.
  planning::DryRun choose_capacity(Plan& p, const StepMap& map, const planning::Programs& programs,
                                   const walk::CostModel& costs) const {
    const auto all = everything(map);
    const auto b = with_room_for_commits(budget());
    auto wide = planning::dry_run(map, request_, programs, b, p.generations, costs, profile_);
    p.capacity = b;
    const auto fit = [&](std::uint64_t cap, std::uint64_t extent, std::uint64_t slack) {
      return std::min(cap, round_up(std::min(all, extent) + slack, kHugePageBytes));
    };
    for (std::uint64_t slack = 0;; slack = slack == 0 ? all / 32 : slack * 2) {
      p.capacity.device = fit(b.device, b.device < all ? b.device : wide.peak[Tier::device], slack);
      p.capacity.host = fit(b.host, b.host < all ? b.host : wide.peak[Tier::host], slack);
      const bool widest = p.capacity.device >= std::min(b.device, all) && p.capacity.host >= std::min(b.host, all);
      if (p.capacity.device == b.device && p.capacity.host == b.host) return wide;  // it would be the same life
      try {
        auto tight = planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, profile_);
        if (tight.steps == wide.steps || widest) return tight;
      } catch (const memory::DoesNotFit&) {
        if (widest) throw;
      }
    }
  }

  // Chooses the distances that are fastest over a short life and fit over the whole life. `first`: the times of the short life
  // at the smallest distances.
  void choose_depth(Plan& p, const StepMap& map, const walk::CostModel& costs, const walk::SimulatedTimes& first) const {
    const auto all = planning::distances_of(request_);
    const auto slower = planning::with_slower_disk(profile_);
    const auto attempt = [&](const planning::Distances& at) -> planning::DistanceSearch::Candidate {
      auto programs = planning::write_programs(map, request_, at.prefetch, at.gather);
      double seconds = 0;  // a single candidate need not be compared
      if (at == planning::Distances{} && !request_.disk_tier)
        seconds = first.seconds;
      else if (all.size() > 1)
        seconds = planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, slower).times.seconds;
      return {at, std::move(programs), seconds};
    };
    planning::DistanceSearch search(all, {attempt, [this](std::size_t count, const auto& task) { for_each(count, task); }});
    search.try_first();
    // If the step is compute-bound, no deeper prefetching can be faster.
    const bool computes_only = all.size() > 1 && all.front() == planning::Distances{} && planning::bound_by_compute(first);
    if (!computes_only) search.try_rest();
    while (auto best = search.take_best()) {
      try {
        make_room_for_resumed(p, map, best->programs, costs);
        const auto life = planning::dry_run(map, request_, best->programs, p.capacity, p.generations, costs, profile_,
                                            {whole_life(best->programs)});
        p.prefetch_depth = best->at.prefetch;
        p.gather_ahead = best->at.gather;
        try_other_ranks(p, costs, p.prefetch_depth, p.gather_ahead);
        const auto resumed = extent_of_resumed(p, map, best->programs, costs);
        return adopt(p, std::move(best->programs), life, resumed);
      } catch (const memory::DoesNotFit& e) {
        search.refuse(e);
      }
    }
    throw memory::DoesNotFit(search.refusal());
  }

  // The data ranks' walks differ only in which chunk of a group they hold; this checks that the other ranks fit too.
  void try_other_ranks(const Plan& p, const walk::CostModel& costs, std::uint32_t depth, std::uint32_t gather_ahead) const {
    for (std::uint32_t r = 1; r < std::min(request_.mesh.size(kDataAxes), kTriedRanks); ++r) {
      auto options = p.map;
      options.rank = data_rank(r);
      const StepMap map(model_, options);
      const auto programs = planning::write_programs(map, request_, depth, gather_ahead);
      planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, profile_);
    }
  }

  // A run that resumes from a commit has all its state on disk, so it places more there than a new run. If the disk tier has no
  // room for that, a new run is still possible. In the other tiers it must fit, so that a run can be resumed under its own
  // budgets.
  std::uint64_t extent_of_resumed(const Plan& p, const StepMap& map, const planning::Programs& programs,
                                  const walk::CostModel& costs) const {
    if (!request_.commits || !request_.trains() || budget().commit_only) return 0;
    try {
      return planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, profile_, {.resumed = true})
          .extent[Tier::disk];
    } catch (const memory::DoesNotFit& e) {
      if (e.tier != Tier::disk) throw;
      return 0;
    }
  }

  // Without a disk tier, the arenas are just as large as the run needs. If the run resumes, it places its state in another
  // order, which may leave smaller holes, and no tier below the host can take a chunk. So the arenas grow here, as far as the
  // budgets allow.
  void make_room_for_resumed(Plan& p, const StepMap& map, const planning::Programs& programs,
                             const walk::CostModel& costs) const {
    if (!request_.commits || !request_.trains() || !budget().commit_only) return;
    const auto all = everything(map);
    const planning::Life life{.most_steps = planning::kFewestSteps, .resumed = true};  // places settle in the first steps
    for (;;) try {
        planning::dry_run(map, request_, programs, p.capacity, p.generations, costs, profile_, life);
        return;
      } catch (const memory::DoesNotFit& e) {
        auto& bytes = e.tier == Tier::device ? p.capacity.device : p.capacity.host;
        const auto most = std::min(budget().of(e.tier), 2 * all);
        if (bytes >= most) return;
        bytes = std::min(most, round_up(bytes + bytes / 4, kHugePageBytes));
      }
  }

  static std::uint64_t whole_life(const planning::Programs& programs) {
    return std::max(planning::kFewestSteps, kWalkedActions / planning::actions_of(programs));
  }

  // `resumed`: extent_of_resumed().
  void adopt(Plan& p, planning::Programs programs, const planning::DryRun& life, std::uint64_t resumed) const {
    p.programs = std::move(programs);
    p.times = life.times;
    p.peak_bytes = life.peak;
    p.steady_traffic = life.steps.back();
    set_average(p, request_, life);
    p.commit_traffic = life.commit;
    p.commit_seconds = life.commit_seconds;
    p.commit_added_seconds = life.commit_added_seconds;
    p.restoring_seconds = life.restoring_seconds;
    p.commits = commits();
    p.step_traffic = life.steps;
    const auto limit = budget();
    const auto extent = life.extent[Tier::disk];
    if (!limit.commit_only && extent > limit.disk)
      throw memory::DoesNotFit(Tier::disk, extent - limit.disk, "the chunks' places on disk exceed the disk tier's budget");
    // A little more than was walked, because the rest of a very long run may place its activations differently. A disk tier
    // that the plan does not use keeps one page, because Residency decides differently without a disk tier.
    const auto most = std::max(extent, resumed);
    p.capacity.disk = most + round_up(most / 16, kPageBytes);
    if (!limit.commit_only) p.capacity.disk = std::clamp(p.capacity.disk, std::min(kPageBytes, limit.disk), limit.disk);
    if (limit.commit_only) p.peak_bytes[Tier::disk] = 0;
  }

  // The number of commits: one at the end, and the periodic ones before it.
  [[nodiscard]] std::uint64_t commits() const {
    if (!request_.trains() || !request_.commits) return 0;
    return 1 + (request_.commit_every == 0 || request_.steps == 0 ? 0 : (request_.steps - 1) / request_.commit_every);
  }

  void refuse(Plan& p, const StepMap& map, const planning::Programs& smallest, const walk::CostModel& costs,
              const memory::DoesNotFit& e) const {
    Action largest;
    const auto& used = request_.trains() ? smallest.steady : request_.evaluates_only ? smallest.evaluate : smallest.decode;
    const auto need = mapping::largest_use(map, used, e.tier == Tier::disk ? Tier::host : e.tier, &largest);
    p.refusal = {.tier = e.tier, .missing_bytes = e.missing_bytes, .why = e.what()};
    const auto asked = request_.budget.of(e.tier);
    if (e.tier == Tier::device && p.smallest_bytes[Tier::device] > asked)
      p.refusal.missing_bytes = p.smallest_bytes[Tier::device] - asked;
    // `need` is 0 if the program has no action on that tier (for example no updates on the host).
    if (e.tier != Tier::disk && need != 0) p.refusal.why += "; " + largest_consumers(map, largest);
    if (map.chunks().size() > kSearchedChunks || !request_.advises) {
      p.refusal.least_bytes = asked + p.refusal.missing_bytes;
      return;
    }
    // Searches budgets by walks at the request's distances; depth 1 if it leaves them open, because depth 0 may need more room.
    const auto depth = request_.prefetch_depth == kAutoDepth ? 1 : request_.prefetch_depth;
    const auto ahead = request_.gather_ahead == kAutoDepth ? 0 : request_.gather_ahead;
    const auto programs = planning::write_programs(map, request_, depth, ahead);
    const auto fits = [&](const Budget& b, std::uint64_t steps = 0) {
      try {
        planning::dry_run(map, request_, programs, with_room_for_commits(b), p.generations, costs, profile_, {steps});
        return true;
      } catch (const memory::DoesNotFit&) {
        return false;
      }
    };
    const auto whole_fits = [&](const Budget& b) {
      try {
        p.capacity = with_room_for_commits(b);
        try_other_ranks(p, costs, depth, ahead);
        (void)extent_of_resumed(p, map, programs, costs);
        return fits(b, whole_life(programs));
      } catch (const memory::DoesNotFit&) {
        return false;
      }
    };
    const auto of_tier = [](Budget& b, Tier tier) -> std::uint64_t& {
      return tier == Tier::device ? b.device : tier == Tier::host ? b.host : b.disk;
    };
    const auto most_of = [&](Tier tier) { return everything(map) * (tier == Tier::disk ? 3 : 2); };
    // The least budget of the tier, from `low` on, that fits together with the other budgets of `b`, found by bisection over
    // walks; 0: none fits, because another tier lacks room.
    const auto nearest = [&](Budget b, Tier tier, std::uint64_t low) -> std::uint64_t {
      const auto with = [&](std::uint64_t bytes) {
        of_tier(b, tier) = bytes;
        return b;
      };
      auto high = most_of(tier);
      if (!fits(with(high))) return 0;
      const auto most = round_up(high, kMiB);
      if (fits(with(low))) high = low;
      while (high - low > std::max<std::uint64_t>(kMiB / 4, low / 64)) {
        const auto middle = low + (high - low) / 2;
        (fits(with(middle)) ? high : low) = middle;
      }
      high = round_up(high, kMiB);
      if (!whole_fits(with(high)) && !whole_fits(with(most))) return 0;
      while (!whole_fits(with(high))) high = std::min(round_up(high + high / 32, kMiB), most);
      return high;
    };
    auto& refusal = p.refusal;
    const auto least = std::max(asked, need);
    refusal.enough_bytes = nearest(budget(), e.tier, least);
    for (const auto other : kAllTiers) {
      if (refusal.enough_bytes != 0) break;
      auto b = budget();
      const auto given = b.of(other);
      if (other == e.tier || given >= most_of(other) || (other == Tier::disk && (given == 0 || b.commit_only))) continue;
      of_tier(b, e.tier) = round_up(most_of(e.tier), kMiB);
      const auto beside = nearest(b, other, given);
      if (beside == 0) continue;
      of_tier(b, other) = beside;
      refusal.enough_bytes = nearest(b, e.tier, least);
      if (refusal.enough_bytes != 0) refusal.other = other, refusal.other_bytes = beside;
    }
    if (refusal.enough_bytes != 0) refusal.missing_bytes = refusal.enough_bytes - std::min(refusal.enough_bytes, asked);
  }

  const Model& model_;
  const PlanRequest& request_;
  const MachineProfile& profile_;
  ThreadPool* pool_;
};

// The exact plan of the best choice that fits.
Plan plan_best(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool) {
  planning::check_request(model, request);
  const auto choices = planning::choose(model, request, profile, pool);
  Plan p;
  for (const auto& ranked : choices.best) {
    p = Planner(model, planning::with_choice(request, ranked), profile, pool).run();
    p.choice = ranked.choice;
    if (p.fits) break;
  }
  p.tried = choices.tried;
  return p;
}

}  // namespace

Plan plan(const Model& model, const PlanRequest& request, const MachineProfile& profile, ThreadPool* pool) {
  if (planning::leaves_open(request, profile)) return plan_best(model, request, profile, pool);
  auto p = Planner(model, request, profile, pool).run();
  p.choice = planning::choice_of(request);
  return p;
}

Plan for_rank(const Plan& p, const Model& model, const PlanRequest& request, const MachineProfile& profile) {
  if (request.rank == p.map.rank) return p;
  const auto closed = planning::with_choice(request, {p.choice, p.prefetch_depth, p.map.update});
  return Planner(model, closed, profile).of_rank(p, request.rank);
}

PerTier<std::uint64_t> peak_of_data_ranks(const Plan& p, const Model& model, const PlanRequest& request,
                                          const MachineProfile& profile, ThreadPool& pool) {
  if (request.sharding().stage() == 0) return p.peak_bytes;  // all ranks hold the same
  std::vector<PerTier<std::uint64_t>> peaks(std::min(request.mesh.size(kDataAxes), kTriedRanks), p.peak_bytes);
  pool.parallel_for(static_cast<std::int64_t>(peaks.size()), [&](std::int64_t i) {
    auto other = request;
    other.rank = request.mesh.at(p.map.rank, kDataAxes, static_cast<std::uint32_t>(i));
    peaks[static_cast<std::size_t>(i)] = for_rank(p, model, other, profile).peak_bytes;
  });
  auto most = p.peak_bytes;
  for (const auto& peak : peaks)
    for (const auto tier : kAllTiers) most[tier] = std::max(most[tier], peak[tier]);
  return most;
}

memory::Traffic traffic_of_step(const Plan& p) {
  auto all = p.steady_traffic;
  if (p.average.every == 0) return all;
  for (const auto amount :
       {&memory::Traffic::upload, &memory::Traffic::download, &memory::Traffic::read, &memory::Traffic::write,
        &memory::Traffic::uploads, &memory::Traffic::downloads, &memory::Traffic::reads, &memory::Traffic::writes})
    all.*amount += p.average.traffic.*amount / p.average.every;
  return all;
}

void retime(Plan& p, const Model& model, const PlanRequest& request, const MachineProfile& profile,
            const walk::CostModel& costs) {
  const StepMap map(model, p.map);
  const auto life =
      planning::dry_run(map, request, p.programs, p.capacity, p.generations, costs, profile, {p.step_traffic.size()});
  set_times(p, life.times, profile);
  set_average(p, request, life);
  p.commit_seconds = life.commit_seconds;
  p.commit_added_seconds = life.commit_added_seconds;
  p.restoring_seconds = life.restoring_seconds;
}

void trace_step(const Plan& p, const Model& model, const PlanRequest& request, const MachineProfile& profile,
                const walk::CostModel& costs, Trace& trace) {
  const StepMap map(model, p.map);
  auto life = request;
  life.evaluate_every = life.commit_every = 0;
  planning::dry_run(map, life, p.programs, p.capacity, p.generations, costs, profile, {.trace = &trace, .steps_only = true});
}

}  // namespace terrace
