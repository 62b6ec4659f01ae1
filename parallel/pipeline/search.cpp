#include <terrace/parallel/pipeline/search.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include <terrace/core/base/error.h>
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
  std::optional<Error> refused;
  const auto try_order = [&](const std::string& name, const auto& write) {
    try {
      Schedule schedule = write();
      const auto stages = schedule.placement.stages;
      Pipeline p{std::move(schedule), balance(layer_costs, stages)};
      const auto timing = simulate(p.schedule, stage_costs(p));
      all.push_back({name, std::move(p), timing.makespan, 0});
      all.back().most_live = most_live(all.back().pipeline, timing);
    } catch (const Error& error) {  // the order refuses these degrees, or no order exists under this cap
      if (error.kind() != ErrorKind::refused) throw;
      if (!refused) refused = error;
    }
  };
  for (const auto& order : all_orders())
    for (const std::uint32_t chunks : {2U, 3U, 4U}) {
      const bool interleaves = order.name == "interleaved";
      if (order.asynchronous || (!interleaves && chunks != 2)) continue;
      try_order(interleaves ? fmt::format("interleaved, {} stages a rank", chunks) : std::string(order.name),
                [&] { return order.write({.ranks = ranks, .micro_batches = micro_batches, .chunks = chunks}); });
    }
  struct Shape {
    const char* where;
    Placement placement;
    std::uint32_t chunks;
  };
  for (const auto& [where, placement, chunks] : {Shape{"in a row", one_stage_a_rank(ranks), 1},
                                                 {"in a V", v_shape(ranks), 2},
                                                 {"in a ring", looping(ranks, 2), 2},
                                                 {"in two directions", both_directions(ranks), 1}}) {
    const std::uint32_t all_live = chunks * micro_batches, usual = chunks * std::min(ranks, micro_batches);
    for (const auto cap : std::set{chunks, std::max(chunks, usual / 2), usual, std::min(all_live, usual * 2), all_live})
      try_order(fmt::format("list {}, at most {} live", where, cap), [&, &shape_of = placement, at_most = cap] {
        const Pipeline shape{{shape_of, micro_batches, {}}, balance(layer_costs, shape_of.stages)};
        return best_list_schedule(shape_of, {.micro_batches = micro_batches, .cap = at_most, .costs = stage_costs(shape)});
      });
  }
  if (all.empty()) throw Error(*refused);
  std::ranges::stable_sort(all, {}, [](const Found& f) { return std::pair{f.makespan, f.most_live}; });
  return all;
}

}  // namespace terrace::pipeline
