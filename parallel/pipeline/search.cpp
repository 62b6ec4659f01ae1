#include <terrace/parallel/pipeline/search.h>

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include <terrace/core/error.h>
#include <terrace/parallel/pipeline/list_scheduler.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::pipeline {
namespace {

std::uint64_t most_live(const Pipeline& p, const Timing& timing) {
  std::uint64_t most = 0;
  for (const auto live : timing.peak_live) most = std::max<std::uint64_t>(most, live);
  return most * p.layers() / p.schedule.placement.stages;
}

}  // namespace

std::vector<Found> search(std::uint32_t ranks, std::uint32_t micro_batches, std::span<const double> layer_costs,
                          const std::function<StageCosts(const Pipeline&)>& stage_costs) {
  std::vector<Found> all;
  const auto add = [&](const std::string& name, Schedule schedule) {
    const auto stages = schedule.placement.stages;
    Pipeline p{std::move(schedule), balance(layer_costs, stages)};
    const auto timing = simulate(p.schedule, stage_costs(p));
    all.push_back({name, std::move(p), timing.makespan, 0});
    all.back().most_live = most_live(all.back().pipeline, timing);
  };
  for (const auto& order : all_orders())
    for (const std::uint32_t chunks : {2U, 3U, 4U}) {
      const bool interleaves = order.name == "interleaved";
      if (order.asynchronous || order.name == "chimera" || (!interleaves && chunks != 2)) continue;
      if (order.name == "dualpipe-v" && micro_batches < 2 * ranks) continue;
      add(interleaves ? fmt::format("interleaved, {} stages a rank", chunks) : std::string(order.name),
          order.write({.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks}));
    }
  for (const auto& [where, placement, chunks] : {std::tuple{"in a row", one_stage_a_rank(ranks), 1U},
                                                 {"in a V", v_shape(ranks), 2U},
                                                 {"in a ring", looping(ranks, 2), 2U}}) {
    const std::uint32_t all_live = chunks * micro_batches, usual = chunks * std::min(ranks, micro_batches);
    for (const auto cap : std::set{chunks, std::max(chunks, usual / 2), usual, std::min(all_live, usual * 2), all_live}) {
      const Pipeline shape{{placement, micro_batches, {}}, balance(layer_costs, placement.stages)};
      try {
        add(fmt::format("list {}, at most {} live", where, cap),
            best_list_schedule(placement, {.micro_batches = micro_batches, .cap = cap, .costs = stage_costs(shape)}));
      } catch (const Error&) {  // no order exists under this cap
      }
    }
  }
  std::ranges::stable_sort(all, {}, [](const Found& f) { return std::pair{f.makespan, f.most_live}; });
  return all;
}

}  // namespace terrace::pipeline
