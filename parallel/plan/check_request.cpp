#include <terrace/parallel/plan/check_request.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/refused_setting.h>
#include <terrace/core/base/usage_errors.h>
#include <terrace/core/math/block8.h>
#include <terrace/memory/layout.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/plan/check_tensor.h>

namespace terrace {
namespace {

void demand_asynchronous(const PlanRequest& request) {
  const auto& s = request.pipeline->schedule;
  if (request.updates_before_use && !pipeline::reads_lag_an_update(s))
    throw RefusedSetting(
        "grad-clip",
        "`schedule` pipedream cannot clip gradients: it updates each stage at once, before the norm of the whole gradient is "
        "known\n  give `grad-clip` 0, or `schedule` pipedream-2bw, which clips every update by the norm of all stages' "
        "gradients");
  if (request.deferred.value_or(0) > 0)
    throw RefusedSetting("deferred-updates",
                         "an asynchronous `schedule` updates each stage within the step, when its order says\n  leave out "
                         "`deferred-updates`, or give a synchronous `schedule`");
}

void demand_copies_of_state(const PlanRequest& request) {
  const auto& mesh = request.mesh;
  const auto& data = request.data;
  if (mesh.copy == 1) return;
  if (data.zero == 0)
    throw RefusedSetting(
        "shard-group",
        "`shard-group` has no effect with `zero` 0, because ZeRO stage 0 shards nothing\n  give `zero` 1, 2 or 3, or "
        "leave `shard-group` out");
  const auto copies = request.sharding().copies();
  if (data.canonical && memory::Layout::kBlockElements % copies != 0)
    throw RefusedSetting(
        "shard-group",
        fmt::format("`canonical-reduction` splits every chunk evenly between the copies of the state, and there are "
                    "{}\n  give a `shard-group` with which `dp` divided by `shard-group` is 2, 4, 8, …",
                    copies));
}

// The model must be that of the rank.
void demand_rank(const Model& model, const PlanRequest& request) {
  const auto& place = model.place;
  const auto demand = [&](const char* kind, AxisSet axes) {
    const auto ranks = request.mesh.size(axes), ranks_of_model = place.mesh.size(axes);
    const auto is = request.mesh.index(request.rank, axes), is_of_model = place.mesh.index(place.rank, axes);
    if (ranks != ranks_of_model)
      throw Error(fmt::format("the run has {} {} ranks, and the model was made for {}", ranks, kind, ranks_of_model),
                  ErrorKind::refused);
    if (is != is_of_model)
      throw Error(fmt::format("rank {} of a mesh of {} is {} rank {}, and the model was made for {} rank {}", request.rank,
                              to_string(request.mesh), kind, is, kind, is_of_model),
                  ErrorKind::refused);
  };
  demand("context", Axis::context);
  demand("expert", Axis::expert);
  demand("tensor", kTensorAxes);
  // The same number of ranks on other axes would sum other gradients.
  for (const auto axis : kAllAxes)
    if (kTensorAxes.has(axis) && request.mesh.degree(axis) != place.mesh.degree(axis))
      throw Error(fmt::format("the run has a mesh of {}, and the model was made for one of {}", to_string(request.mesh),
                              to_string(place.mesh)),
                  ErrorKind::refused);
}

// The other checks need a mesh with this rank.
void demand_mesh(const PlanRequest& request) {
  demand_mesh(request.mesh);
  if (request.rank >= request.mesh.size())
    throw Error(fmt::format("there is no rank {} in a mesh of {}", request.rank, to_string(request.mesh)), ErrorKind::refused);
  const auto stages = request.pipeline ? request.pipeline->schedule.placement.ranks : 1;
  if (request.mesh.pp != stages)
    throw Error(
        fmt::format("a mesh of {} for a pipeline of {} ranks: mesh.pp must be {}", to_string(request.mesh), stages, stages),
        ErrorKind::refused);
}

}  // namespace

std::uint32_t first_rank(const Model& model, const PlanRequest& request, std::uint32_t stage) {
  auto rank = request.mesh.at(0, Axis::pp, stage);
  for (const AxisSet axes : {AxisSet(Axis::expert), AxisSet(Axis::context), kTensorAxes})
    rank = request.mesh.at(rank, axes, model.place.mesh.index(model.place.rank, axes));
  return rank;
}

namespace {

void demand_commits(const PlanRequest& request) {
  if (request.generations != 1 && request.generations != 2)
    throw RefusedSetting("durability",
                         "the state on disk has one or two generations: `durability` off and none have one, the others two");
  if (request.generations == 1 && request.commit_every != 0)
    throw RefusedSetting(
        "ckpt-interval",
        "with one generation of the state on disk, nothing can be committed before the end\n  leave out `ckpt-interval`, or "
        "give `durability` commit");
  if (!request.commits && (request.commit_every != 0 || request.generations != 1))
    throw RefusedSetting(
        "ckpt-interval",
        "a run with `durability` none commits nothing and has one generation of the state on disk\n  leave out "
        "`ckpt-interval`");
}

void demand_early_updates(const PlanRequest& request) {
  if (request.early.value_or(0) == 0 || request.may_update_early()) return;
  throw RefusedSetting(
      "early-updates",
      !request.updates_before_use
          ? "without clipping, skipped steps and a dynamic loss scale, no update waits for the norm, so none can be early\n  "
            "leave out `early-updates`"
          : "an early update must be taken back if the norm clips, which ranks of a pipeline, `zero` 1 and 2, and optimizers "
            "of whole layers cannot do\n  give `early-updates` auto or none");
}

DType gradient_dtype(const Model& model, const PlanRequest& request) {
  return rules::Recipe::of(model.dtype, request.recipe, request.states).gradient;
}

void demand_travel(const Model& model, const PlanRequest& request) {
  const auto data = request.sharding();
  if (data.gradients != Travel::whole && (!data.folds_each() || gradient_dtype(model, request) != DType::fp32))
    throw RefusedSetting(
        "compress-gradients",
        "`compress-gradients` works only where the fp32 gradients of each micro-batch are sent by themselves\n  give `zero` 2 "
        "or 3 or `canonical-reduction`, and a `recipe` with fp32 gradients");
  if (data.gradients == Travel::int8 && data.canonical &&
      data.copies() > memory::Layout::kBlockElements / math::kBlock8Elements)
    throw RefusedSetting(
        "compress-gradients",
        fmt::format("`compress-gradients` int8 needs whole blocks of {} elements, and {} copies of the state split the chunks "
                    "into smaller parts\n  give a larger `shard-group`, or `compress-gradients` bf16",
                    math::kBlock8Elements, data.copies()));
}

void demand_packed_weights(const Model& model, const PlanRequest& request) {
  const auto& data = request.data;
  const bool packs = model.dtype == DType::fp32 || model.dtype == DType::bf16;
  if (data.weights != Travel::whole && (data.weights != Travel::int8 || data.zero != 3 || !packs))
    throw RefusedSetting(
        "compress-weights",
        "`compress-weights` int8 works only where fp32 or bf16 weights are gathered before every use\n  give `zero` 3 and "
        "`dtype` fp32 or bf16, or leave out `compress-weights`");
}

void demand_exact_gradients(const Model& model, const PlanRequest& request) {
  if (request.data.canonical && gradient_dtype(model, request) == DType::bf16)
    throw RefusedSetting(
        "recipe",
        fmt::format("`recipe` {} keeps gradients in bf16, which are rounded after every sum, but `canonical-reduction` "
                    "needs fp32 gradients\n  give a `recipe` with fp32 gradients, or leave out `canonical-reduction`",
                    request.recipe));
}

// Each tile is updated separately, so an optimizer of whole matrices cannot update a parameter in tiles.
void demand_whole_tensors(const Model& model, const PlanRequest& request) {
  if (!request.layer_unit) return;
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    const bool hidden = l != 0 && l + 1 != model.layers.size();
    if (!hidden && request.layer_unit->hidden_only) continue;
    const bool attention = model.layers[l]->name().ends_with(".attention");
    const auto* const setting = !hidden ? "vocab-tiles" : attention ? "attention-tiles" : "mlp-tiles";
    for (const auto& param : model.layers[l]->params())
      if (param.tiles > 1 && !param.frozen)
        throw RefusedSetting(
            setting, fmt::format("an optimizer that needs whole matrices cannot update {}, which lies in {} tiles\n  give "
                                 "`optimizer` adamw, or leave out `{}`",
                                 param.name, param.tiles, setting));
  }
}

void demand_layers(const Model& model, const PlanRequest& request) {
  if (model.layers.size() < 2) throw Error("a model needs at least two layers", ErrorKind::refused);
  if (!request.activations.empty() && request.activations.size() != model.layers.size())
    throw Error(fmt::format("there are activation settings for {} layers, but the model has {}", request.activations.size(),
                            model.layers.size()),
                ErrorKind::refused);
}

bool has_param(const Model& model, bool ParamSpec::*kind) {
  return std::ranges::any_of(model.layers, [&](const auto& layer) { return std::ranges::any_of(layer->params(), kind); });
}

Features features_of(const Model& model, const PlanRequest& request) {
  auto all = features_of(model.place);
  const auto& data = request.data;
  const auto sharding = request.sharding();
  all.add_several(Feature::pipeline, request.mesh.pp);
  all.add_if(request.two_directions(), Feature::two_directions);
  all.add_if(request.pipeline && request.pipeline->schedule.asynchronous(), Feature::asynchronous);
  all.add_if(data.zero != 0, Feature::sharded_state, data.zero);
  all.add_if(sharding.stage() == 2, Feature::sharded_gradients);
  all.add_if(data.canonical, Feature::canonical);
  all.add_if(data.gradients != Travel::whole, Feature::narrow_gradients);
  all.add_if(data.weights != Travel::whole, Feature::narrow_weights);
  all.add_if(data.local, Feature::local_sgd, static_cast<std::int64_t>(request.average_every));
  all.add_if(model.dtype == DType::fp16, Feature::fp16);
  all.add_if(has_param(model, &ParamSpec::tied), Feature::tied);
  all.add_if(model::Skips(model).any(), Feature::skips);
  all.add_if(request.trains() && (!request.freeze.empty() || has_param(model, &ParamSpec::frozen)), Feature::frozen);
  all.add_if(request.layer_unit.has_value(), Feature::whole_matrices);
  all.add_if(any_clips(request.param_groups), Feature::clipped_groups);
  return all;
}

// In a zigzag, each place in a ring has two equal parts of a sequence.
void demand_zigzag(const Model& model, const PlanRequest& request) {
  const auto context = model.place.context();
  if (!context.zigzag || request.shape.batch.seq * context.head_ranks() % 2 == 0) return;
  const auto ranks = static_cast<int>(context.ranks), ring = static_cast<int>(context.ring);
  for (const auto& problem : problems({.cp = ranks, .ring = ring == ranks ? 0 : ring, .zigzag = true},
                                      {.heads = ranks, .seq_len = request.shape.batch.seq * ranks}, ranks))
    if (problem.setting == "cp") throw RefusedSetting(problem);
}

}  // namespace

void planning::check_request(const Model& model, const PlanRequest& request) {
  const auto& data = request.data;
  // These come first: the other checks assume them.
  if (request.shape.batch.batch <= 0 || request.shape.batch.seq <= 0 || request.shape.micro_batches == 0)
    throw RefusedSetting("batch-size", "`batch-size`, `seq-len` and `grad-accumulation` must be at least 1");
  if (data.zero > 3) throw RefusedSetting("zero", "`zero` must be at most 3");
  demand_mesh(request);
  if (request.decode_positions != 0 && request.evaluates_only)
    throw Error("a plan is for generation or for evaluation, and not for both", ErrorKind::refused);
  if (request.decode_positions != 0 && model.place.tensor().ranks > 1)
    throw Error("generation has no tensor ranks", ErrorKind::refused);
  if (request.mesh.context > 1 && !request.trains()) throw Error("generation has no context ranks", ErrorKind::refused);
  if (request.mesh.expert > 1 && !request.trains()) throw Error("generation has no expert ranks", ErrorKind::refused);

  base::UsageErrors errors;
  errors.gather([&] { demand_commits(request); });
  errors.gather([&] { demand_early_updates(request); });
  errors.gather([&] { demand_copies_of_state(request); });
  errors.gather([&] {
    if (request.pipeline && request.pipeline->schedule.asynchronous()) demand_asynchronous(request);
  });
  errors.gather([&] { demand_travel(model, request); });
  errors.gather([&] { demand_packed_weights(model, request); });
  errors.gather([&] { demand_exact_gradients(model, request); });
  for (const auto& refusal : refusals(features_of(model, request))) errors.gather([&] { throw RefusedSetting(refusal); });
  errors.gather([&] { planning::check_tensor(model, request); });
  errors.gather([&] { demand_whole_tensors(model, request); });
  errors.gather([&] { demand_rank(model, request); });
  errors.gather([&] { demand_zigzag(model, request); });
  errors.gather([&] { demand_layers(model, request); });
  errors.throw_if_any();
}

}  // namespace terrace
