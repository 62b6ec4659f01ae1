#include <terrace/parallel/pipeline/pipeline.h>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>

#include <terrace/core/base/refused_setting.h>
#include <terrace/parallel/pipeline/forwards.h>

namespace terrace::pipeline {
namespace {

std::string nearest_multiples(std::uint32_t number, std::uint32_t of) {
  const auto below = number / of * of;
  return below == 0 ? fmt::format("{}", of) : fmt::format("{} or {}", below, below + of);
}

bool in_halves(const Schedule& s) {
  return std::ranges::any_of(s.tasks, [](const auto& tasks) {
    return std::ranges::any_of(tasks, [](const Task& t) { return t.work == Work::input || t.work == Work::weight; });
  });
}

// The layer actions of a task.
void add_task(Program& p, const Pipeline& pipeline, const Task& t) {
  const auto first = pipeline.begins[t.stage], end = pipeline.begins[t.stage + 1];
  const auto add = [&](Op op, std::uint32_t layer) {
    p.actions.push_back({.op = op, .layer = layer, .micro_batch = t.micro_batch});
  };
  if (t.work == Work::forward) {
    for (auto l = first; l < end; ++l)
      if (l + 1 != p.layers) add(Op::forward, l);
    return;
  }
  for (auto l = end; l-- > first;) {
    const bool whole_in_input = l + 1 == p.layers, whole_in_weight = l == 0;
    switch (t.work) {
      case Work::input:
        if (!whole_in_weight) add(whole_in_input ? Op::backward : Op::backward_input, l);
        break;
      case Work::weight:
        if (!whole_in_input) add(whole_in_weight ? Op::backward : Op::backward_weight, l);
        break;
      default: add(Op::backward, l);
    }
  }
}

std::uint32_t stage_of(const Pipeline& p, std::uint32_t layer) {
  return static_cast<std::uint32_t>(std::ranges::upper_bound(p.begins, layer) - p.begins.begin()) - 1;
}

// The stages whose results each stage reads: the one before it, and for a skip that ends in it, the one where the skip begins.
std::vector<std::vector<std::uint32_t>> inputs_of(const Pipeline& p, const model::Skips& skips) {
  auto inputs = chain(p.schedule.placement.stages);
  for (std::uint32_t l = 0; l < p.layers(); ++l) {
    if (skips.into(l) == model::Skips::kNone) continue;
    const auto from = stage_of(p, skips.into(l) - 1), to = stage_of(p, l);
    if (from != to && std::ranges::find(inputs[to], from) == inputs[to].end()) inputs[to].push_back(from);
  }
  return inputs;
}

// The k, in ascending order, of all x(k) that a rank reads from a stage.
std::vector<std::uint32_t> read_of(const Pipeline& p, const model::Skips& skips, std::uint32_t stage, std::uint32_t rank,
                                   std::uint32_t micro_batch) {
  const auto computes = [&](std::uint32_t layer) { return p.schedule.rank_of(stage_of(p, layer), micro_batch) == rank; };
  std::vector<std::uint32_t> all;
  const auto end = p.begins[stage + 1];
  for (auto k = p.begins[stage] + 1; k <= end && k < p.layers(); ++k) {
    const auto reader = skips.reader(k);
    if ((k == end && computes(k)) || (reader != model::Skips::kNone && computes(reader))) all.push_back(k);
  }
  return all;
}

void add_message(Program& p, const Pipeline& pipeline, const model::Skips& skips, const Action& a) {
  const auto& m = a.message;
  const bool forward = m.payload == Payload::activation, sends = a.op == Action::Op::send;
  for (const auto k : read_of(pipeline, skips, m.stage, forward ? m.destination : m.source, m.micro_batch))
    p.actions.push_back({.op = sends ? Op::send : Op::receive,
                         .layer = k,
                         .micro_batch = m.micro_batch,
                         .payload = forward ? terrace::Payload::activation : terrace::Payload::gradient,
                         .peer = sends ? m.destination : m.source});
}

// Adds the reductions of the stage's layers, in the order in which their backwards ran.
void add_reductions(Program& p, const Pipeline& pipeline, const Task& t) {
  for (auto l = pipeline.begins[t.stage + 1]; l-- > pipeline.begins[t.stage];)
    p.actions.push_back({.op = Op::reduce, .layer = l, .micro_batch = t.micro_batch});
}

// Cuts stages where skips begin. The skipped result is then a stage's result, and is sent to the skip's rank before the next
// layer frees it.
Pipeline cut_where_skips_begin(const Pipeline& p, const model::Skips& skips) {
  const auto& placement = p.schedule.placement;
  Pipeline out{.schedule = {.placement = {.ranks = placement.ranks,
                                          .stages = 0,
                                          .rank_of = std::vector<std::vector<std::uint32_t>>(placement.rank_of.size())},
                            .tasks = {}},
               .begins = {0}};
  for (std::uint32_t l = 1; l <= p.layers(); ++l) {
    const auto stage = stage_of(p, l - 1);
    if (p.begins[stage + 1] != l && skips.reader(l) == model::Skips::kNone) continue;
    out.begins.push_back(l);
    ++out.schedule.placement.stages;
    for (std::size_t r = 0; r < placement.rank_of.size(); ++r)
      out.schedule.placement.rank_of[r].push_back(placement.rank_of[r][stage]);
  }
  return out;
}

// Both directions must have equally many micro-batches, and each stage must be on different ranks in the two.
void demand_directions(const Schedule& s) {
  const auto replicas = static_cast<std::uint32_t>(s.placement.rank_of.size());
  if (s.micro_batches % replicas != 0)
    throw RefusedSetting(
        "grad-accumulation",
        fmt::format("the {} directions of this schedule need the same number of micro-batches, and {} cannot be divided\n  "
                    "give `grad-accumulation` {}",
                    replicas, s.micro_batches, nearest_multiples(s.micro_batches, replicas)));
  for (std::uint32_t stage = 0; stage < s.placement.stages; ++stage) {
    std::set<std::uint32_t> ranks;
    for (const auto& of_replica : s.placement.rank_of) ranks.insert(of_replica[stage]);
    if (ranks.size() != replicas)
      throw RefusedSetting(
          "schedule", fmt::format("the `schedule` file places stage {} on rank {} in two directions\n  place it on two ranks",
                                  stage, *ranks.begin()));
  }
}

// The least possible cost of the most expensive stage.
double dearest(std::span<const double> sums, std::uint32_t stages) {
  const auto layers = sums.size() - 1;
  std::vector<double> least(layers + 1, std::numeric_limits<double>::infinity());  // of the first l layers, so far
  least[0] = 0;
  for (std::uint32_t s = 0; s < stages; ++s)
    for (auto end = layers; end > 0; --end)
      for (auto begin = end; begin-- > 0;) least[end] = std::min(least[end], std::max(least[begin], sums[end] - sums[begin]));
  return least[layers];
}

}  // namespace

std::vector<std::uint32_t> balance(std::span<const double> layer_costs, std::uint32_t stages) {
  const auto layers = static_cast<std::uint32_t>(layer_costs.size());
  std::vector<std::uint32_t> begins(stages + 1, 0);
  if (stages >= layers) {
    for (std::uint64_t s = 0; s <= stages; ++s) begins[s] = static_cast<std::uint32_t>((s * layers + stages - 1) / stages);
    return begins;
  }
  std::vector<double> sums{0};
  for (const double c : layer_costs) sums.push_back(sums.back() + c);
  const double cap = dearest(sums, stages) * (1 + 1e-9);
  // [stage][layers before its end]: the least sum of squares, and where the stage begins.
  const double never = std::numeric_limits<double>::infinity();
  std::vector squares(stages + 1, std::vector<double>(layers + 1, never));
  std::vector from(stages + 1, std::vector<std::uint32_t>(layers + 1, 0));
  squares[0][0] = 0;
  for (std::uint32_t s = 1; s <= stages; ++s)
    for (std::uint32_t end = 1; end <= layers; ++end)
      for (auto begin = end; begin-- > 0;) {
        const double cost = sums[end] - sums[begin], all = squares[s - 1][begin] + cost * cost;
        if (cost > cap) break;
        if (all < squares[s][end]) squares[s][end] = all, from[s][end] = begin;
      }
  begins[stages] = layers;
  for (auto s = stages; s > 0; --s) begins[s - 1] = from[s][begins[s]];
  return begins;
}

Pipeline without_empty_stages(const Pipeline& p) {
  const auto& s = p.schedule;
  Pipeline out{.schedule = {.placement = {.ranks = s.placement.ranks,
                                          .stages = 0,
                                          .rank_of = std::vector<std::vector<std::uint32_t>>(s.placement.rank_of.size())},
                            .micro_batches = s.micro_batches,
                            .tasks = {},
                            .update_every = s.update_every},
               .begins = {0}};
  std::vector<std::uint32_t> number(s.placement.stages);
  auto& placement = out.schedule.placement;
  for (std::uint32_t stage = 0; stage < s.placement.stages; ++stage) {
    number[stage] = placement.stages;
    if (p.begins[stage] == p.begins[stage + 1]) continue;
    out.begins.push_back(p.begins[stage + 1]);
    for (std::size_t r = 0; r < placement.rank_of.size(); ++r) placement.rank_of[r].push_back(s.placement.rank_of[r][stage]);
    if (s.asynchronous()) out.schedule.reads.push_back(s.reads[stage]);
    ++placement.stages;
  }
  for (const auto& tasks : s.tasks) {
    auto& kept = out.schedule.tasks.emplace_back();
    for (auto task : tasks) {
      if (p.begins[task.stage] == p.begins[task.stage + 1]) continue;
      task.stage = number[task.stage];
      kept.push_back(task);
    }
  }
  return out;
}

mesh::PipelineParallel placement_of(const Pipeline& p) {
  const auto& placement = p.schedule.placement;
  if (!placement.inputs.empty())
    throw RefusedSetting(
        "schedule", "the model decides which stages read which, so the `schedule` file cannot\n  leave out its input lines");
  demand_directions(p.schedule);
  mesh::PipelineParallel part{.ranks = placement.ranks,
                              .rank_of = std::vector<std::vector<std::uint32_t>>(placement.rank_of.size()),
                              .stage_of = {},
                              .halves = in_halves(p.schedule),
                              .update_every = p.schedule.update_every,
                              .reads = p.schedule.reads,
                              .kept = kept_versions(p.schedule)};
  for (std::uint32_t s = 0; s < placement.stages; ++s)
    for (auto l = p.begins[s]; l < p.begins[s + 1]; ++l) {
      for (std::size_t r = 0; r < part.rank_of.size(); ++r) part.rank_of[r].push_back(placement.rank_of[r][s]);
      part.stage_of.push_back(s);
    }
  return part;
}

Program step_of(const Pipeline& given, std::uint32_t rank, Reduced reduced, const model::Skips& skips, Verdicts verdicts) {
  auto p = without_empty_stages(given);
  if (skips.any()) p.schedule.placement.inputs = inputs_of(p, skips);
  Program out{p.layers(), p.schedule.micro_batches, {}};
  const auto connected = connect(p.schedule, reduced, verdicts);
  for (const auto& a : connected.actions[rank]) {
    switch (a.op) {
      case Action::Op::compute: add_task(out, p, a.task); break;
      case Action::Op::reduce: add_reductions(out, p, a.task); break;
      case Action::Op::send:
      case Action::Op::receive: add_message(out, p, skips, a); break;
    }
  }
  return out;
}

Program evaluation_of(const Pipeline& given, std::uint32_t rank, std::uint32_t micro_batches, const model::Skips& skips) {
  auto p = cut_where_skips_begin(without_empty_stages(given), skips);
  if (skips.any()) p.schedule.placement.inputs = inputs_of(p, skips);
  p.schedule = forwards(p.schedule.placement, micro_batches);
  Program out{p.layers(), micro_batches, {}};
  const auto connected = connect(p.schedule);
  for (const auto& a : connected.actions[rank]) {
    if (a.op != Action::Op::compute) {
      add_message(out, p, skips, a);
      continue;
    }
    for (auto l = p.begins[a.task.stage]; l < p.begins[a.task.stage + 1]; ++l)
      out.actions.push_back({.op = Op::evaluate, .layer = l, .micro_batch = a.task.micro_batch});
  }
  return out;
}

}  // namespace terrace::pipeline
