// What a search divides over ranks: a model, how it is trained, and what only the caller knows of both.
//
// Owner: a value. Its functions borrow what they capture, and are called on several threads at once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <terrace/core/machine/machine.h>
#include <terrace/parallel/layers/parts/transformer.h>
#include <terrace/parallel/model/layer.h>
#include <terrace/parallel/plan/choose_tiles.h>
#include <terrace/parallel/plan/plan_request.h>
#include <terrace/parallel/plan/search/candidates.h>

namespace terrace {

// How the layers of several pipeline ranks are computed.
struct SearchedPipelines {
  // The schedule of a candidate. Nothing: the fastest one that fits is searched. Throws Error(ErrorKind::refused) if the
  // candidate cannot have the schedule. Empty: 1F1B.
  std::function<std::optional<pipeline::Schedule>(const Candidate&)> schedule = {};
  // Sets the pipeline of any candidate's request before it is planned, or refuses it. Where it sets none for several pipeline
  // ranks, the fastest schedule is searched. Empty: the schedule with balanced stages.
  std::function<void(PlanRequest&, const Candidate&, const Model&)> set = {};
  bool balances = true;  // false: the stages are not the balanced ones
  // A schedule repeats itself after this number of micro-batches for each rank, so that more of them can be extrapolated;
  // 0: never.
  std::uint32_t repeats_after = 2;
};

struct SearchedRun {
  SearchSpace space;
  // A rank's request. The search sets its shape, mesh, rank, ZeRO stage and pipeline.
  PlanRequest request;
  // The rank's part of the model; it may depend on the request, as tiles do. Throws Error(ErrorKind::refused) if there is no
  // such part.
  std::function<Model(const ModelRank&, const PlanRequest&)> model = {};
  // The layers between the first and the last one repeat after this number of layers, so estimates look at these alone; 0: they
  // do not repeat.
  std::uint32_t period = 0;
  SearchedPipelines pipelines = {};
};

// The run that trains this transformer. Numbers of tiles that are 0 are chosen for each candidate. The caller sets the ranks
// and the sequences of a step; `request` has the shape of a micro-batch with all of its positions.
SearchedRun searched_run(const layers::Transformer& transformer, const PlanRequest& request, const MachineProfile& profile,
                         const Tiling& tiling = {});

// The candidate's request before it has a pipeline.
PlanRequest request_of(const SearchedRun& run, const Candidate& candidate);
// The candidate's schedule; nothing: the fastest one that fits is searched.
std::optional<pipeline::Schedule> schedule_of(const SearchedRun& run, const Candidate& candidate);

}  // namespace terrace
