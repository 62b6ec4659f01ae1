#include <terrace/parallel/programs.h>

#include <algorithm>
#include <iterator>

#include <terrace/core/units.h>
#include <terrace/parallel/asynchronous_passes.h>
#include <terrace/parallel/checker.h>
#include <terrace/parallel/orders.h>
#include <terrace/parallel/passes.h>
#include <terrace/parallel/phase_pass.h>
#include <terrace/parallel/tensor_passes.h>

namespace terrace {

StepMap::Options map_options(const Model& model, const PlanRequest& r, const MachineProfile& profile,
                             const UpdatePlace& update) {
  const auto chosen = [&] { return choose_activations(model, r.shape.batch, r.recompute.value_or(0), r.offload.value_or(0)); };
  const auto recipe = Recipe::of(model.dtype, r.recipe, r.states);
  return {.recipe = r.weights_given ? recipe.weights_alone() : recipe,
          .shape = r.shape,
          .activations = r.activations.empty() ? chosen() : r.activations,
          .update = update,
          .separate_device = profile.separate_device(),
          .commits = r.commits,
          .chunk_elements = r.chunk_elements,
          .decode_positions = r.decode_positions,
          .data = r.data,
          .pipeline = r.pipeline ? placement_of(*r.pipeline) : PipelineParallel{},
          .rank = mesh_of(model, r).at(r.rank, kDataAxes, 0),
          .layer_unit = r.layer_unit,
          .param_groups = r.param_groups};
}

std::uint32_t evaluated_at_once(const PlanRequest& r) {
  if (!r.pipeline || r.evaluate_batches == 0) return 1;
  const auto each = ceil_div(r.evaluate_batches, std::uint64_t{r.data.ranks});
  return static_cast<std::uint32_t>(ceil_div(each, ceil_div(each, std::uint64_t{r.shape.micro_batches})));
}

Programs write_programs(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead) {
  const auto layers = map.layers();
  const auto m = request.shape.micro_batches;
  const auto finish = [&](const Program& p) { return with_prefetches(with_offloads(p, map), map, depth); };
  if (request.decode_positions != 0) {
    Programs out;
    out.decode = finish(with_phases(decoding(layers), map));
    if (request.weights_given) out.fill = sweep(Op::fill, layers, [&](std::uint32_t l) { return map.layout().groups_of(l); });
    return out;
  }
  const auto kind = request.order.value_or(Order::horizontal);
  const auto reduced = map.data().folds_each() ? pipeline::Reduced::each_round : pipeline::Reduced::once;
  const bool clipped = map.pipeline().asynchronous() && request.updates_before_use;
  const auto verdicts = !clipped                          ? pipeline::Verdicts::none
                        : map.data().gathers_before_use() ? pipeline::Verdicts::before_all
                                                          : pipeline::Verdicts::before_gradients;
  auto order = request.pipeline            ? step_of(*request.pipeline, map.pipeline().rank, reduced, map.skips(), verdicts)
               : kind == Order::horizontal ? horizontal(layers, m)
               : kind == Order::vertical   ? vertical(layers, m)
                                           : group_vertical(layers, m, std::max(1U, request.group));
  order = with_tensor_exchanges(with_recompute(order, map), map);
  if (map.pipeline().asynchronous()) {
    order = with_unions(with_norm_of_each_update(with_reductions(order, map), map), map);
  } else {
    order = with_reductions(order, map, map.data().folds_each() && gather_ahead > 0);
    order = with_gathers(with_tied_gradients(with_unions(with_norms(order, map), map), map), map, gather_ahead);
  }

  const auto chunks_of = [&](std::uint32_t l) { return map.layout().groups_of(l); };
  Programs out;
  if (map.pipeline().asynchronous()) {
    const auto updates = request.updates_before_use ? Updates::after_verdict : Updates::in_backward;
    order = updates == Updates::after_verdict ? with_updates_after_verdicts(order, map) : with_updates(order, map, updates);
    out.steady = with_phases(with_gathers(with_versions(order, map), map, gather_ahead), map);
    check_step(out.steady, map, updates);
    out.first = out.steady = finish(out.steady);
  } else {
    const auto steady_updates = request.updates_before_use ? Updates::before_use : Updates::in_backward;
    const auto first_updates = request.updates_before_use ? Updates::none : Updates::in_backward;
    out.updates_before_use = request.updates_before_use;
    out.first = with_phases(with_updates(order, map, first_updates), map);
    check_step(out.first, map, first_updates);
    out.steady = with_phases(with_updates(order, map, steady_updates), map);
    check_step(out.steady, map, steady_updates);
    out.first = finish(out.first);
    out.steady = finish(out.steady);
    if (request.updates_before_use) out.drain = finish(with_updates({layers, 0, {}}, map, Updates::all));
  }
  const auto evaluate = request.pipeline
                            ? evaluation_of(*request.pipeline, map.pipeline().rank, evaluated_at_once(request), map.skips())
                            : evaluation(layers, 1);
  out.evaluate = finish(with_phases(with_gathers(with_tensor_exchanges(evaluate, map), map, gather_ahead), map));
  const auto here = [&](std::uint32_t l) { return map.pipeline().holds(l) ? map.layout().groups_of(l) : 0; };
  const auto here_or_copied = [&](std::uint32_t l) { return map.copies(l) ? map.layout().groups_of(l) : here(l); };
  out.fill = sweep(Op::fill, layers, here);
  out.gather = {layers, 0, {}};
  for (const auto& a : sweep(Op::fill, layers, here_or_copied).actions) add_weight_messages(out.gather, map, a);
  if (map.data().gathers_updates())
    std::ranges::copy(sweep(Op::gather, layers, here_or_copied).actions, std::back_inserter(out.gather.actions));
  std::ranges::copy(out.gather.actions, std::back_inserter(out.fill.actions));
  out.visit = finish(sweep(Op::visit, layers, chunks_of));
  if (map.data().local) {
    Program average{layers, 0, {}};
    for (const auto& visit : sweep(Op::visit, layers, chunks_of).actions) {
      average.actions.push_back(visit);
      average.actions.push_back({.op = Op::fill, .layer = visit.layer, .chunk = visit.chunk});
    }
    out.average = finish(average);
  }
  return out;
}

}  // namespace terrace
