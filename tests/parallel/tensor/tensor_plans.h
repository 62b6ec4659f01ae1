// What ranks of a TensorRun plan: the bytes that they exchange, whether their steps agree, and what a simulation of them hides.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <terrace/parallel/map/exchange.h>
#include <terrace/parallel/passes/check_collectives.h>
#include <terrace/parallel/walk/overlap.h>

#include <terrace/tests/parallel/run/beside.h>
#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {

// Empty if the model can be made and planned.
inline std::string refusal_of(const TensorRun& o) {
  return refusal_of([&] { plan_of(o); });
}

// The bytes that the first rank exchanges within a machine in a steady step.
inline std::map<comm::Operation, double> planned_bytes(const TensorRun& o) {
  const auto planned = plan_of(o).stages.front();
  const auto model = model_of(config_of(o, 0));
  const StepMap map(model, planned.map);
  std::map<comm::Operation, double> bytes;
  for (const auto& action : planned.programs.steady.actions)
    for (const auto& exchange : mapping::exchanges_of(map, action))
      bytes[exchange.operation] += mapping::link_bytes({}, exchange).within;
  return bytes;
}

struct PlannedRank {
  Model model;
  Plan plan;
};

inline void check_collectives(const std::vector<PlannedRank>& all) {
  std::deque<StepMap> maps;
  std::vector<passes::RankProgram> ranks;
  for (const auto& one : all) ranks.push_back({maps.emplace_back(one.model, one.plan.map), one.plan.programs.steady});
  passes::check_collectives(ranks);
}

// Each rank plans by itself, and the plan chooses the order and what is recomputed. Expects the same steps and bytes of all.
inline std::vector<PlannedRank> expect_ranks_agree(const TensorRun& o, const Budget& budget) {
  const auto optimizer = make_optimizer(o.optimizer, {});
  std::vector<PlannedRank> all;
  for (std::uint32_t rank = 0; rank < o.ranks(); ++rank) {
    auto model = model_of(config_of(o, rank));
    auto request = request_of(o, *optimizer, rank);
    request.budget = budget;
    request.recompute = request.offload = {};
    request.order = {};
    auto planned = for_rank(plan(model, request, {}), model, request, {});
    EXPECT_TRUE(planned.fits) << planned.refusal.why;
    all.push_back({std::move(model), std::move(planned)});
    EXPECT_EQ(to_text(all.front().plan.programs.steady), to_text(all.back().plan.programs.steady));
    EXPECT_EQ(all.front().plan.capacity.device, all.back().plan.capacity.device);
  }
  EXPECT_NO_THROW(check_collectives(all));
  return all;
}

// The share of the exchanges of context ranks that runs beside computing, if each takes a second and a computation ten.
inline double hidden_share_of_context(const TensorRun& o) {
  class SlowComputing final : public walk::CostModel {
   public:
    explicit SlowComputing(const StepMap& map) : map_(map) {}
    double seconds(const Action& a) const override {
      if (!is_layer_action(a.op)) return 0;
      return map_.phases().exchanges(a) ? 1 : 10;
    }

   private:
    const StepMap& map_;
  };
  const auto optimizer = make_optimizer(o.optimizer, {});
  const auto model = model_of(config_of(o, 0));
  const auto request = request_of(o, *optimizer, 0);
  const auto planned = plan(model, request, {});
  EXPECT_TRUE(planned.fits);
  const StepMap map(model, planned.map);
  Trace trace;
  trace_step(planned, model, request, {}, SlowComputing(map), trace);
  walk::OverlapMeter meter;
  for (const auto& s : trace.spans())
    for (const auto lane : {Lane::compute, Lane::context})
      if (s.lane == name_of(lane)) meter.add(lane, static_cast<double>(s.begin_ns), static_cast<double>(s.end_ns));
  return meter.take().hidden();
}

// Runs a step on all ranks, with gates before the exchanges that `counts` (beside.h). Layers whose names `watches` report their
// phases. Returns the number of exchanges of a rank that have a partner.
inline std::size_t step_beside(const TensorRun& o, const std::filesystem::path& folder, std::vector<Beside>& beside,
                               const std::function<bool(const std::string&)>& watches,
                               const GatedCommunicator::Counts& counts) {
  std::vector<std::size_t> partners(beside.size());
  const auto outcome = on_threads(static_cast<int>(beside.size()), {std::chrono::seconds(90)}, [&](Rank& rank) {
    const auto r = static_cast<std::uint32_t>(rank.comm->rank());
    auto model = model_of(config_of(o, r));
    for (auto& layer : model.layers)
      if (watches(layer->name())) layer = std::make_unique<Watched>(std::move(layer), beside[r]);
    const auto optimizer = make_optimizer(o.optimizer, {});
    const auto request = request_of(o, *optimizer, r);
    const auto planned = for_rank(plan(model, request, {}), model, request, {});
    const StepMap map(model, planned.map);
    GatedCommunicator gated(std::move(rank.comm), beside[r], counts);
    Engine engine(model, planned,
                  {.device = &rank.device,
                   .store = {.paths = {folder}, .name = fmt::format("rank{}", r), .temporary = true},
                   .optimizer = optimizer.get(),
                   .communicator = &gated});
    engine.fill(random_weights(7));
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(map.options().shape.batch.tokens()) * o.micro_batches, 1);
    auto gates = partners_of(map, planned.programs.first, counts);
    partners[r] = gates.size();
    beside[r].begin(std::move(gates));
    engine.step({.tokens = ids, .targets = ids});
  });
  for (const auto& error : outcome) EXPECT_EQ(error, "");
  return partners.front();
}

}  // namespace terrace::test
