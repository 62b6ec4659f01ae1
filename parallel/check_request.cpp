#include <terrace/parallel/check_request.h>

#include <fmt/format.h>

#include <terrace/core/block8.h>
#include <terrace/core/error.h>

namespace terrace {
namespace {

void demand_asynchronous(const Model& model, const PlanRequest& request) {
  const auto& s = request.pipeline->schedule;
  if (request.updates_before_use && !pipeline::reads_lag_an_update(s))
    throw Error(
        "pipedream updates a stage with its own gradient at once, and its next forward reads what came of it: nobody knows "
        "the norm of the whole gradient by then\n  give --grad-clip 0, or --schedule pipedream-2bw, which clips every "
        "update by the norm of all stages' gradients",
        Exit::usage);
  if (any_clips(request.param_groups))
    throw Error(
        "an asynchronous order of a pipeline clips all parameters together or not at all\n  leave clip out of "
        "--param-group, or give a synchronous --schedule like 1f1b",
        Exit::usage);
  for (const auto& layer : model.layers)
    for (const auto& p : layer->params())
      if (p.tied)
        throw Error(fmt::format("stages of an asynchronous order read different versions of their weights, and {} is shared by "
                                "two of them\n  give --untied, or a synchronous --schedule like 1f1b",
                                p.name),
                    Exit::usage);
}

// A stage's ranks are those of its data group in every direction. States and weights are sharded within each.
void demand_directions(const DataParallel& data) {
  if (data.stage() == 2)
    throw Error(
        "an order in two directions adds a stage's gradient up between both of its ranks, which keep it whole, and ZeRO-2 "
        "would shard it\n  give --zero 1 or 3, which shard states and weights over --dp, or another --schedule like 1f1b",
        Exit::usage);
  if (data.gradients != Travel::whole)
    throw Error(
        "an order in two directions adds gradients up as they are\n  leave out --compress-gradients, or give another "
        "--schedule like 1f1b",
        Exit::usage);
}

void demand_shard_group(const DataParallel& data) {
  if (data.shard_group == 0) return;
  if (data.ranks % data.shard_group != 0)
    throw Error(fmt::format("shard groups of {} do not divide {} ranks\n  give --shard-group a divisor of --dp",
                            data.shard_group, data.ranks),
                Exit::usage);
  if (data.zero == 0)
    throw Error("ZeRO stage 0 shards nothing, and shard groups mean nothing to it\n  give --zero 1, 2 or 3", Exit::usage);
  if (data.canonical && Layout::kBlockElements % data.copies() != 0)
    throw Error(fmt::format("canonical reduction between {} copies of the state: each folds its part of every chunk\n  give a "
                            "--shard-group that makes 2, 4, 8, … of them",
                            data.copies()),
                Exit::usage);
}

}  // namespace

void check_request(const Model& model, const PlanRequest& request) {
  if (request.shape.batch.batch <= 0 || request.shape.batch.seq <= 0 || request.shape.micro_batches == 0)
    throw Error("batch size, sequence length and gradient accumulation must be positive", Exit::usage);
  if (request.generations != 1 && request.generations != 2)
    throw Error("state has one or two generations on disk", Exit::usage);
  if (request.generations == 1 && request.commit_every != 0)
    throw Error("with one generation of the state on disk nothing can be committed before the end", Exit::usage);
  if (!request.commits && (request.commit_every != 0 || request.generations != 1))
    throw Error("a run without commits has one generation of the state on disk", Exit::usage);
  const auto& data = request.data;
  if (data.ranks == 0 || data.zero > 3) throw Error("there is at least one data rank, and ZeRO has stages 0 to 3", Exit::usage);
  demand_shard_group(data);
  if (data.local && (data.zero != 0 || data.canonical || data.gradients != Travel::whole || data.weights != Travel::whole ||
                     request.pipeline))
    throw Error(
        "ranks that update copies of their own share no state and no gradients\n  average weights without --zero, "
        "--canonical-reduction, --compress-gradients and --pp, or leave out --sync-interval",
        Exit::usage);
  if (request.pipeline && request.pipeline->schedule.asynchronous()) demand_asynchronous(model, request);
  if (request.pipeline && request.pipeline->schedule.placement.rank_of.size() > 1) demand_directions(data);
  if (data.gradients != Travel::whole &&
      (!data.folds_each() || Recipe::of(model.dtype, request.recipe, request.states).gradient != DType::fp32))
    throw Error(
        "gradients travel as bf16 or int8 where fp32 ones of each micro-batch are folded\n  give --zero 2 or 3 or "
        "--canonical-reduction, and a recipe with fp32 gradients",
        Exit::usage);
  if (data.gradients == Travel::int8 && data.canonical && data.copies() > Layout::kBlockElements / kBlock8Elements)
    throw Error(
        fmt::format("{} copies of the state fold parts of chunks that are no whole blocks of {} elements\n  give a larger "
                    "--shard-group, or --compress-gradients bf16",
                    data.copies(), kBlock8Elements),
        Exit::usage);
  const bool packs = model.dtype == DType::fp32 || model.dtype == DType::bf16;
  if (data.weights != Travel::whole && (data.weights != Travel::int8 || data.zero != 3 || !packs))
    throw Error(
        "weights travel as int8 where they are gathered before every use, and in fp32 or bf16\n  give --zero 3, or leave out "
        "--compress-weights",
        Exit::usage);
  if (data.canonical && Recipe::of(model.dtype, request.recipe, request.states).gradient == DType::bf16)
    throw Error(fmt::format("recipe {} keeps gradients in bf16, which are rounded after every sum\n  canonical reduction wants "
                            "fp32 gradients: choose another --recipe",
                            request.recipe),
                Exit::usage);
  if (!request.activations.empty() && request.activations.size() != model.layers.size())
    throw Error(fmt::format("settings of activations for {} layers, and the model has {}", request.activations.size(),
                            model.layers.size()),
                Exit::usage);
  if (model.layers.size() < 2) throw Error("a model needs at least two layers", Exit::usage);
}

}  // namespace terrace
