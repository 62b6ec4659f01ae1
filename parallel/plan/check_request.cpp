#include <terrace/parallel/plan/check_request.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/core/base/refused_setting.h>
#include <terrace/core/base/usage_errors.h>
#include <terrace/core/math/block8.h>
#include <terrace/memory/layout.h>
#include <terrace/optimizers/recipe.h>
#include <terrace/parallel/mesh/degrees.h>
#include <terrace/parallel/mesh/run_mesh.h>
#include <terrace/parallel/model/skips.h>
#include <terrace/parallel/plan/check_tensor.h>

namespace terrace {
namespace {

bool has_frozen(const Model& model, const PlanRequest& request) {
  if (!request.freeze.empty()) return true;
  return std::ranges::any_of(model.layers,
                             [](const auto& layer) { return std::ranges::any_of(layer->params(), &ParamSpec::frozen); });
}

void demand_what_works_with_frozen(const Model& model, const PlanRequest& request) {
  if (!request.trains() || !has_frozen(model, request)) return;
  const auto refuse = [](const char* setting, const std::string& what) {
    throw RefusedSetting(setting, fmt::format("frozen parameters (`freeze`, `lora-rank`) do not work with {}", what));
  };
  if (request.pipeline && request.pipeline->schedule.asynchronous())
    refuse("schedule", "an asynchronous schedule yet\n  give a synchronous one, such as `schedule` 1f1b");
  if (request.pipeline && placement_of(*request.pipeline).replicas() > 1)
    refuse("schedule", "a schedule in two directions yet\n  give another one, such as `schedule` 1f1b");
  if (request.data.local) refuse("sync-interval", "averages of weights yet\n  give `sync-interval` 1");
}

void demand_asynchronous(const Model& model, const PlanRequest& request) {
  const auto& s = request.pipeline->schedule;
  if (request.updates_before_use && !pipeline::reads_lag_an_update(s))
    throw RefusedSetting(
        "grad-clip",
        "`schedule` pipedream cannot clip gradients: it updates each stage at once, before the norm of the whole gradient is "
        "known\n  give `grad-clip` 0, or `schedule` pipedream-2bw, which clips every update by the norm of all stages' "
        "gradients");
  if (any_clips(request.param_groups))
    throw RefusedSetting(
        "param-groups",
        "an asynchronous pipeline schedule cannot clip groups of parameters separately\n  leave clip out of `param-groups`, or "
        "give a synchronous schedule, such as `schedule` 1f1b");
  for (const auto& layer : model.layers)
    for (const auto& p : layer->params())
      if (p.tied)
        throw RefusedSetting(
            "untied",
            fmt::format("the stages of an asynchronous schedule read different versions of their weights, but two stages "
                        "share {}\n  give `untied`, or a synchronous schedule, such as `schedule` 1f1b",
                        p.name));
}

// In a schedule with two directions, a stage has one data group for each direction, and state is sharded within each group.
void demand_directions(const DataParallel& data) {
  if (data.stage() == 2)
    throw RefusedSetting(
        "zero",
        "a schedule with two directions, such as chimera, sums a stage's gradient between its two ranks, and both keep all of "
        "it: `zero` 2 would shard it\n  give `zero` 1 or 3, or another schedule, such as `schedule` 1f1b");
  if (data.gradients != Travel::whole)
    throw RefusedSetting(
        "compress-gradients",
        "a schedule with two directions, such as chimera, cannot compress the gradients that it sums\n  leave out "
        "`compress-gradients`, or give another schedule, such as `schedule` 1f1b");
}

void demand_shard_group(const DataParallel& data) {
  if (data.shard_group == 0) return;
  if (data.ranks % data.shard_group != 0)
    throw RefusedSetting(
        "shard-group",
        fmt::format("`shard-group` {} does not divide the {} data ranks\n  give a `shard-group` that divides `dp` {}",
                    data.shard_group, data.ranks, data.ranks));
  if (data.zero == 0)
    throw RefusedSetting(
        "shard-group",
        "`shard-group` has no effect with `zero` 0, because ZeRO stage 0 shards nothing\n  give `zero` 1, 2 or 3, or "
        "leave `shard-group` out");
  if (data.canonical && Layout::kBlockElements % data.copies() != 0)
    throw RefusedSetting(
        "shard-group",
        fmt::format("`canonical-reduction` splits every chunk evenly between the copies of the state, and there are "
                    "{}\n  give a `shard-group` with which `dp` divided by `shard-group` is 2, 4, 8, …",
                    data.copies()));
}

void demand_rank(const Model& model, const PlanRequest& request) {
  const auto mesh = mesh_of(model, request);
  check(mesh);
  if (request.rank >= mesh.size())
    throw Error(fmt::format("there is no rank {} in a mesh of {}", request.rank, to_string(mesh)), Exit::usage);
  const auto demand_ranks = [](const char* kind, std::uint32_t of_run, std::uint32_t of_model) {
    if (of_run != of_model)
      throw Error(fmt::format("the run has {} {} ranks, and the model was made for {}", of_run, kind, of_model), Exit::usage);
  };
  const auto demand_place = [&](const char* kind, std::uint32_t of_run, std::uint32_t of_model) {
    if (of_run != of_model)
      throw Error(fmt::format("rank {} of a mesh of {} is {} rank {}, and the model was made for {} rank {}", request.rank,
                              to_string(mesh), kind, of_run, kind, of_model),
                  Exit::usage);
  };
  demand_ranks("context", request.data.context, model.context.ranks);
  demand_place("context", mesh.coordinate(request.rank, Axis::context), model.context.rank);
  demand_ranks("expert", request.data.experts, model.expert.ranks);
  demand_place("expert", mesh.coordinate(request.rank, Axis::expert), model.expert.rank);
  demand_place("tensor", mesh.index(request.rank, kTensorAxes), model.tensor.rank);
}

}  // namespace

Mesh mesh_of(const Model& model, const PlanRequest& r) {
  return mesh_of(r.data, r.pipeline ? r.pipeline->schedule.placement.ranks : 1, model.tensor);
}

std::uint32_t first_rank(const Model& model, const PlanRequest& request, std::uint32_t stage) {
  const auto mesh = mesh_of(model, request);
  auto rank = mesh.at(0, Axis::pp, stage);
  rank = mesh.at(rank, Axis::expert, model.expert.rank);
  rank = mesh.at(rank, Axis::context, model.context.rank);
  return mesh.at(rank, kTensorAxes, model.tensor.rank);
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

void demand_copies(const PlanRequest& request) {
  const auto& data = request.data;
  if (data.local && (data.zero != 0 || data.canonical || data.gradients != Travel::whole || data.weights != Travel::whole ||
                     request.pipeline))
    throw RefusedSetting(
        "sync-interval",
        "with `sync-interval` each rank updates its own copy of the weights, and ranks share no state and no gradients\n  "
        "leave out `zero`, `canonical-reduction`, `compress-gradients`, `compress-weights` and `pp`, or leave out "
        "`sync-interval`");
}

DType gradient_dtype(const Model& model, const PlanRequest& request) {
  return Recipe::of(model.dtype, request.recipe, request.states).gradient;
}

void demand_travel(const Model& model, const PlanRequest& request) {
  const auto& data = request.data;
  if (data.gradients != Travel::whole && (!data.folds_each() || gradient_dtype(model, request) != DType::fp32))
    throw RefusedSetting(
        "compress-gradients",
        "`compress-gradients` works only where the fp32 gradients of each micro-batch are sent by themselves\n  give `zero` 2 "
        "or 3 or `canonical-reduction`, and a `recipe` with fp32 gradients");
  if (data.gradients == Travel::int8 && data.canonical && data.copies() > Layout::kBlockElements / kBlock8Elements)
    throw RefusedSetting(
        "compress-gradients",
        fmt::format("`compress-gradients` int8 needs whole blocks of {} elements, and {} copies of the state split the chunks "
                    "into smaller parts\n  give a larger `shard-group`, or `compress-gradients` bf16",
                    kBlock8Elements, data.copies()));
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
  if (model.layers.size() < 2) throw Error("a model needs at least two layers", Exit::usage);
  if (!request.activations.empty() && request.activations.size() != model.layers.size())
    throw Error(fmt::format("there are activation settings for {} layers, but the model has {}", request.activations.size(),
                            model.layers.size()),
                Exit::usage);
}

bool two_directions(const PlanRequest& request) {
  return request.pipeline && request.pipeline->schedule.placement.rank_of.size() > 1;
}

Degrees degrees_of(const Model& model, const PlanRequest& request) {
  return {.dp = static_cast<int>(request.data.ranks),
          .pp = request.pipeline ? static_cast<int>(request.pipeline->schedule.placement.ranks) : 1,
          .tp = static_cast<int>(model.tensor.ranks),
          .cp = static_cast<int>(request.data.context),
          .ep = static_cast<int>(request.data.experts),
          .canonical_reduction = request.data.canonical,
          .zigzag = model.context.zigzag,
          .fp16 = model.dtype == DType::fp16,
          .skips = Skips(model).any(),
          .whole_matrices = request.layer_unit.has_value(),
          .local_sgd = request.data.local,
          .two_directions = two_directions(request)};
}

// In a zigzag, each place in a ring has two equal parts of a sequence.
void demand_zigzag(const Model& model, const PlanRequest& request) {
  const auto& context = model.context;
  if (!context.zigzag || request.shape.batch.seq * context.head_ranks() % 2 == 0) return;
  const auto ranks = static_cast<int>(context.ranks), ring = static_cast<int>(context.ring);
  for (const auto& problem : problems({.cp = ranks, .ring = ring == ranks ? 0 : ring, .zigzag = true},
                                      {.heads = ranks, .seq_len = request.shape.batch.seq * ranks}, ranks))
    if (problem.setting == "cp") throw RefusedSetting(problem);
}

}  // namespace

void check_request(const Model& model, const PlanRequest& request) {
  const auto& data = request.data;
  // These come first: the other checks assume them.
  if (request.shape.batch.batch <= 0 || request.shape.batch.seq <= 0 || request.shape.micro_batches == 0)
    throw RefusedSetting("batch-size", "`batch-size`, `seq-len` and `grad-accumulation` must be at least 1");
  if (data.ranks == 0 || data.zero > 3) throw RefusedSetting("dp", "`dp` must be at least 1, and `zero` at most 3");
  if (data.context == 0) throw RefusedSetting("cp", "`cp` must be at least 1");
  if (data.experts == 0) throw RefusedSetting("ep", "`ep` must be at least 1");
  if (request.decode_positions != 0 && request.evaluates_only)
    throw Error("a plan is for generation or for evaluation, and not for both", Exit::usage);
  if (data.context > 1 && !request.trains()) throw Error("generation has no context ranks", Exit::usage);
  if (data.experts > 1 && !request.trains()) throw Error("generation has no expert ranks", Exit::usage);

  UsageErrors errors;
  errors.gather([&] { demand_commits(request); });
  errors.gather([&] { demand_shard_group(data); });
  errors.gather([&] { demand_copies(request); });
  errors.gather([&] {
    if (request.pipeline && request.pipeline->schedule.asynchronous()) demand_asynchronous(model, request);
  });
  errors.gather([&] {
    if (two_directions(request)) demand_directions(data);
  });
  errors.gather([&] { demand_travel(model, request); });
  errors.gather([&] { demand_packed_weights(model, request); });
  errors.gather([&] { demand_exact_gradients(model, request); });
  for (const auto& misfit : misfits(degrees_of(model, request))) errors.gather([&] { throw RefusedSetting(misfit); });
  errors.gather([&] { check_tensor(model, request); });
  errors.gather([&] { demand_whole_tensors(model, request); });
  errors.gather([&] { demand_rank(model, request); });
  errors.gather([&] { demand_zigzag(model, request); });
  errors.gather([&] { demand_layers(model, request); });
  errors.gather([&] { demand_what_works_with_frozen(model, request); });
  errors.throw_if_any();
}

}  // namespace terrace
