#include <terrace/parallel/plan/programs.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include <terrace/core/base/units.h>
#include <terrace/parallel/passes/asynchronous_passes.h>
#include <terrace/parallel/passes/checker.h>
#include <terrace/parallel/passes/passes.h>
#include <terrace/parallel/passes/phase_pass.h>
#include <terrace/parallel/program/orders.h>

namespace terrace::planning {

StepMap::Options map_options(const Model& model, const PlanRequest& r, const MachineProfile& profile,
                             const UpdatePlace& update) {
  const auto chosen = [&] { return choose_activations(model, r.shape.batch, r.recompute.value_or(0), r.offload.value_or(0)); };
  const auto recipe = rules::Recipe::of(model.dtype, r.recipe, r.states);
  return {.recipe = r.weights_given ? recipe.weights_alone() : recipe,
          .shape = r.shape,
          .activations = r.activations.empty() ? chosen() : r.activations,
          .update = update,
          .separate_device = profile.separate_device(),
          .commits = r.commits,
          .chunk_elements = r.chunk_elements,
          .decode_positions = r.decode_positions,
          .mesh = r.mesh,
          .data = r.data,
          .pipeline = r.pipeline ? placement_of(*r.pipeline) : mesh::PipelineParallel{},
          .rank = r.mesh.at(r.rank, kDataAxes, 0),
          .layer_unit = r.layer_unit,
          .param_groups = r.param_groups,
          .freeze = r.freeze,
          .early = early_layers(static_cast<std::uint32_t>(model.layers.size()), r.early.value_or(0))};
}

std::uint32_t evaluated_at_once(const PlanRequest& r) {
  if (!r.pipeline || r.evaluate_batches == 0) return 1;
  const auto each = ceil_div(r.evaluate_batches, std::uint64_t{r.mesh.size(kBatchAxes)});
  return static_cast<std::uint32_t>(ceil_div(each, ceil_div(each, std::uint64_t{r.shape.micro_batches})));
}

namespace {

constexpr std::uint32_t kUpdatesAhead = 3;  // phases; more need more room on the device and gain nothing in plans

// Writes the programs of one rank, one function for each.
class ProgramWriter {
 public:
  ProgramWriter(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead)
      : map_(map), request_(request), depth_(depth), gather_ahead_(gather_ahead) {}

  [[nodiscard]] Programs of_reading() const {
    Programs out;
    if (request_.evaluates_only)
      out.evaluate = evaluate();
    else
      out.decode = finish(passes::with_phases(orders::decoding(layers()), map_));
    if (request_.weights_given) out.fill = orders::sweep(Op::fill, layers(), groups_of());
    return out;
  }

  [[nodiscard]] Programs of_training() const {
    auto out = map_.pipeline().asynchronous() ? asynchronous_steps() : synchronous_steps();
    out.evaluate = evaluate();
    out.gather = gather();
    out.fill = orders::sweep(Op::fill, layers(), groups_here());
    std::ranges::copy(out.gather.actions, std::back_inserter(out.fill.actions));
    out.visit = finish(orders::sweep(Op::visit, layers(), groups_of()));
    if (map_.data().local) out.average = average();
    return out;
  }

 private:
  using CountOfLayer = std::function<std::uint32_t(std::uint32_t layer)>;
  [[nodiscard]] std::uint32_t layers() const { return map_.layers(); }
  // groups_of(): all groups of chunks of a layer. groups_here(): those that this rank holds. groups_here_or_copied(): also the
  // groups of tied weights of which this rank keeps a copy.
  [[nodiscard]] CountOfLayer groups_of() const {
    return [this](std::uint32_t l) { return map_.layout().groups_of(l); };
  }
  [[nodiscard]] CountOfLayer groups_here() const {
    return [this](std::uint32_t l) { return map_.pipeline().holds(l) ? map_.layout().groups_of(l) : 0; };
  }
  [[nodiscard]] CountOfLayer groups_here_or_copied() const {
    return [this](std::uint32_t l) { return map_.pipeline().holds(l) || map_.copies(l) ? map_.layout().groups_of(l) : 0; };
  }

  // The last passes of every program: none of them changes what is computed.
  [[nodiscard]] Program finish(const Program& p) const {
    return passes::with_prefetches(passes::with_offloads(p, map_), map_, depth_);
  }

  // The order of forwards and backwards, as the request names it.
  [[nodiscard]] Program order() const {
    const auto m = request_.shape.micro_batches;
    if (request_.pipeline) {
      const auto reduced = map_.data().folds_each() ? pipeline::Reduced::each_round : pipeline::Reduced::once;
      return step_of(*request_.pipeline, map_.pipeline().rank, reduced, map_.skips(), verdicts());
    }
    const auto kind = request_.order.value_or(Order::horizontal);
    if (kind == Order::horizontal) return orders::horizontal(layers(), m);
    if (kind == Order::vertical) return orders::vertical(layers(), m);
    return orders::group_vertical(layers(), m, std::max(1U, request_.group));
  }

  [[nodiscard]] pipeline::Verdicts verdicts() const {
    if (!map_.pipeline().asynchronous() || !request_.updates_before_use) return pipeline::Verdicts::none;
    return map_.data().gathers_before_use() ? pipeline::Verdicts::before_all : pipeline::Verdicts::before_gradients;
  }

  // Everything that a step computes with its layers, without reductions and updates.
  [[nodiscard]] Program computed() const { return passes::with_recompute(passes::without_frozen(order(), map_), map_); }

  // Steps that repeat. A deferred update of a layer precedes its next use; else an update follows the layer's last backward.
  [[nodiscard]] Programs synchronous_steps() const {
    auto step = passes::with_reductions(computed(), map_, map_.data().folds_each() && gather_ahead_ > 0);
    // The tied gradient must arrive before the unify action sums it with that of the ranks with other parts.
    step = passes::with_gathers(passes::with_unions(passes::with_tied_gradients(passes::with_norms(step, map_), map_), map_),
                                map_, gather_ahead_);
    Programs out;
    out.updates_before_use = request_.updates_before_use;
    if (!out.updates_before_use) out.deferred = deferred_layers(layers(), request_.deferred.value_or(0));
    const auto deferred = out.updates_before_use ? LayerSet::all() : out.deferred;
    // Updates in the backward, early or not, follow all phases of a norm. Updates before use have a distance counted in phases,
    // like prefetches.
    step = passes::with_updates(step, map_, passes::Updates::in_backward, 0, deferred.others());
    step = passes::with_phases(passes::with_updates(step, map_, passes::Updates::early, 0, map_.options().early), map_);
    const auto with = [&](passes::Updates pending) {
      const auto p = passes::with_restores(passes::with_updates(step, map_, pending, update_ahead(), deferred), map_);
      passes::check_step(p, map_, {deferred, pending, passes::Updates::in_backward});
      return finish(p);
    };
    out.first = with(passes::Updates::none);
    out.steady = out.leaves_pending() ? with(passes::Updates::before_use) : out.first;
    if (out.leaves_pending())
      out.drain =
          finish(passes::with_restores(passes::with_updates({layers(), 0, {}}, map_, passes::Updates::all, 0, deferred), map_));
    return out;
  }

  // The distance of updates before use. Weights on a device of its own are uploaded after their update, so with distance 0 the
  // device would wait for every upload. Frozen weights are prefetched independently of updates: weights that were just updated
  // would be uploaded behind the frozen weights of later layers, and wait for their reads.
  [[nodiscard]] std::uint32_t update_ahead() const {
    if (map_.data().gathers_before_use()) return 0;
    if (map_.layout().has_frozen()) return depth_;
    const bool uploads = map_.options().separate_device && request_.updates_before_use;
    return uploads ? std::min(depth_, kUpdatesAhead) : 0;
  }

  // Updates run within the step: there is no special first step, and no update stays pending.
  [[nodiscard]] Programs asynchronous_steps() const {
    const auto updates = request_.updates_before_use ? passes::Updates::after_verdict : passes::Updates::in_backward;
    auto step = passes::with_unions(passes::with_norm_of_each_update(passes::with_reductions(computed(), map_), map_), map_);
    step = updates == passes::Updates::after_verdict ? passes::with_updates_after_verdicts(step, map_)
                                                     : passes::with_updates(step, map_, updates);
    step = passes::with_phases(passes::with_gathers(passes::with_versions(step, map_), map_, gather_ahead_), map_);
    passes::check_step(step, map_, updates);
    Programs out;
    out.first = out.steady = finish(step);
    return out;
  }

  [[nodiscard]] Program evaluate() const {
    const auto order = request_.pipeline
                           ? evaluation_of(*request_.pipeline, map_.pipeline().rank, evaluated_at_once(request_), map_.skips())
                           : orders::evaluation(layers(), 1);
    return finish(passes::with_phases(passes::with_gathers(order, map_, gather_ahead_), map_));
  }

  // Sends every rank the weights that it lacks after a resume.
  [[nodiscard]] Program gather() const {
    Program out{layers(), 0, {}};
    for (const auto& a : orders::sweep(Op::fill, layers(), groups_here_or_copied()).actions)
      passes::add_weight_messages(out, map_, a);
    if (map_.data().gathers_updates())
      std::ranges::copy(orders::sweep(Op::gather, layers(), groups_here_or_copied()).actions, std::back_inserter(out.actions));
    return out;
  }

  // Local SGD: every group that trains is visited for the sum, and filled with the mean.
  [[nodiscard]] Program average() const {
    Program out{layers(), 0, {}};
    const auto trained = [this](std::uint32_t l) { return map_.layout().trained_groups(l); };
    for (const auto& visit : orders::sweep(Op::visit, layers(), trained).actions) {
      out.actions.push_back(visit);
      out.actions.push_back({.op = Op::fill, .layer = visit.layer, .chunk = visit.chunk});
    }
    return finish(out);
  }

  const StepMap& map_;
  const PlanRequest& request_;
  const std::uint32_t depth_, gather_ahead_;
};

}  // namespace

Programs write_programs(const StepMap& map, const PlanRequest& request, std::uint32_t depth, std::uint32_t gather_ahead) {
  const ProgramWriter writer(map, request, depth, gather_ahead);
  return request.trains() ? writer.of_training() : writer.of_reading();
}

}  // namespace terrace::planning
