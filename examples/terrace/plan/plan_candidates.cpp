#include <terrace/examples/terrace/plan/plan_candidates.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/examples/terrace/plan/choose_tiles.h>
#include <terrace/examples/terrace/plan/pipeline_setup.h>
#include <terrace/examples/terrace/plan/setup.h>
#include <terrace/examples/terrace/ranks/ranks.h>
#include <terrace/parallel/pipeline/orders.h>

namespace terrace::cli {
namespace {

// A schedule from a file is for one number of micro-batches, and an asynchronous one has no step that repeats.
bool repeats(const RunConfig& c) {
  return c.parallel.schedule == "auto" || std::ranges::any_of(pipeline::all_orders(), [&](const auto& order) {
           return order.name == c.parallel.schedule && !order.asynchronous;
         });
}

}  // namespace

SearchedRun searched_run(const RunConfig& given, const RanksOfSearch& ranks, const MachineProfile& profile) {
  const auto transformer = transformer_of_one_rank(given);
  auto request = plan_request(given);
  request.shape.batch = {given.train.batch_size, given.model.seq_len};
  auto run = terrace::searched_run(transformer, request, profile, tiling_of(given.model));
  run.space.ranks = static_cast<std::uint32_t>(ranks.ranks);
  run.space.ranks_per_node = static_cast<std::uint32_t>(ranks.ranks_per_node);
  run.space.sequences = ranks.sequences;
  auto in_one_piece = given;  // because each candidate has its own number of pieces
  in_one_piece.parallel.tp_overlap = 1;
  const auto& p = given.parallel;
  auto& degrees = run.space.given.degrees;
  auto& place = run.space.given.place;
  degrees.cp = static_cast<int>(p.cp);
  degrees.ep = static_cast<int>(p.ep);
  degrees.with = features_of(in_one_piece, transformer);
  place.pieces = static_cast<std::uint32_t>(p.tp_overlap);
  place.ring = static_cast<std::uint32_t>(p.ring());
  place.two_rings = p.cp > 1 && p.cp_mode == ContextMode::two_rings;
  auto& pipelines = run.pipelines;
  pipelines.schedule = [&given](const Candidate& candidate) {
    const auto config = config_of(given, candidate);
    return searches_schedule(config) ? std::nullopt : std::optional(schedule_of(config));
  };
  pipelines.set = [&](PlanRequest& of_rank, const Candidate& candidate, const Model& model) {
    set_pipeline(of_rank, config_of(given, candidate), model, profile);
  };
  pipelines.balances = p.stage_layers.empty();
  pipelines.repeats_after = repeats(given) ? static_cast<std::uint32_t>(2 * std::max<std::int64_t>(1, p.virtual_stages)) : 0;
  return run;
}

RunConfig config_of(RunConfig c, const Candidate& candidate) {
  const auto& d = candidate.degrees;
  auto& p = c.parallel;
  if (d.cp > 1 && d.cp != p.cp) {
    const auto ring = static_cast<std::int64_t>(candidate.place.ring);
    p.cp_mode = ring == 1 ? ContextMode::ulysses : ring == d.cp ? ContextMode::ring : ContextMode::both;
    if (p.cp_mode == ContextMode::both) p.cp_ring = ring;
  }
  p.dp = d.dp;
  p.pp = d.pp;
  p.tp = d.tp;
  p.cp = d.cp;
  p.ep = d.ep;
  p.tp_mode = d.tensor_mode;
  p.tp_depth = d.tensor_depth;
  p.sp = candidate.place.sequence && d.tensor_mode == TensorMode::line;
  p.tp_overlap = candidate.place.pieces;
  p.zero = candidate.zero;
  if (d.pp == 1) p.schedule = RunConfig().parallel.schedule;
  c.train.grad_accumulation = candidate.micro_batches;
  return c;
}

std::string flags_of(const RunConfig& c) {
  auto flags = fmt::format("--dp {}", c.parallel.dp);
  if (c.parallel.pp > 1) flags += fmt::format(" --pp {} --schedule {}", c.parallel.pp, c.parallel.schedule);
  if (c.parallel.tp > 1) flags += fmt::format(" --tp {}{}", c.parallel.tp, c.parallel.sp ? " --sp" : "");
  if (c.parallel.tp_mode != TensorMode::line) flags += fmt::format(" --tp-mode {}", word_of(c.parallel.tp_mode));
  if (c.parallel.tp_depth > 1) flags += fmt::format(" --tp-depth {}", c.parallel.tp_depth);
  if (c.parallel.cp > 1) flags += fmt::format(" --cp {}", c.parallel.cp);
  if (c.parallel.ring() > 1) flags += fmt::format(" --cp-mode {}", word_of(c.parallel.cp_mode));
  if (c.parallel.ring() > 1 && c.parallel.cp_mode == ContextMode::both)
    flags += fmt::format(" --cp-ring {}", c.parallel.cp_ring);
  if (c.parallel.ep > 1) flags += fmt::format(" --ep {}", c.parallel.ep);
  return flags + fmt::format(" --zero {} --grad-accumulation {}", c.parallel.zero, c.train.grad_accumulation);
}

}  // namespace terrace::cli
