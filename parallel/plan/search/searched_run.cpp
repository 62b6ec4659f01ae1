#include <terrace/parallel/plan/search/searched_run.h>

#include <terrace/parallel/layers/chain.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace {

SearchedRun searched_run(const layers::Transformer& transformer, const PlanRequest& request, const MachineProfile& profile,
                         const Tiling& tiling) {
  SearchedRun run{.space = {.micro_batch = request.shape.batch, .model = layers::shape_of(transformer)}, .request = request};
  auto& given = run.space.given.degrees;
  given.canonical_reduction = request.data.canonical;
  given.zigzag = transformer.window.is_usual();
  given.with = features_of(transformer);
  run.model = [=](const ModelRank& place, const PlanRequest& of_rank) {
    auto own = transformer;
    own.place = place;
    return layers::make_transformer(in_tiles(own, choose_tiles(own, tiling, {of_rank, profile})));
  };
  if (transformer.skips == layers::SkipShape::none)
    run.period = static_cast<std::uint32_t>(2 * transformer.window.pattern().size());
  return run;
}

PlanRequest request_of(const SearchedRun& run, const Candidate& candidate) {
  auto request = run.request;
  const auto& whole = run.space.micro_batch;
  request.shape = {{whole.batch, whole.seq / candidate.degrees.cp}, candidate.micro_batches};
  request.mesh = candidate.place.mesh;
  request.data.zero = candidate.zero;
  request.rank = 0;
  request.pipeline.reset();
  return request;
}

std::optional<pipeline::Schedule> schedule_of(const SearchedRun& run, const Candidate& candidate) {
  if (run.pipelines.schedule) return run.pipelines.schedule(candidate);
  return pipeline::one_f_one_b(
      {.ranks = static_cast<std::uint32_t>(candidate.degrees.pp), .micro_batches = candidate.micro_batches});
}

}  // namespace terrace
