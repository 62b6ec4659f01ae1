// The collectives of every order under every way to share state: all members of a set issue the same ones in the same order,
// and the error names a rank that does not.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <terrace/optimizers/optimizer.h>
#include <terrace/parallel/mesh/groups.h>
#include <terrace/parallel/passes/check_collectives.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/plan/plan.h>
#include <terrace/tests/support/data_ranks.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_model.h>

namespace terrace {
namespace {

using testing::HasSubstr;
using u32 = std::uint32_t;

// All ranks of a run of a toy model, with the programs of a plan without limits.
struct Ranks {
  Ranks(const std::string& order, const test::DataRanks& data, const std::string& optimizer_name = "adamw", bool tied = true) {
    request.data = data.settings();
    u32 stages = 1;
    if (!order.empty()) {
      request.pipeline.emplace();
      request.pipeline->schedule = pipeline::write_order(order, {.ranks = 2, .micro_batches = 4, .chunks = 2, .updates = 2});
      stages = request.pipeline->schedule.placement.stages;
      request.pipeline->begins = {0};
      for (u32 s = 1; s < stages; ++s) request.pipeline->begins.push_back(s + 1);
      request.pipeline->begins.push_back(stages + 2);
    }
    model = toy::make_model({.width = 16, .vocab = 33, .blocks = stages, .tied = tied});
    request.shape = {{1, 4}, request.pipeline ? request.pipeline->schedule.micro_batches : 4};
    request.mesh = data.mesh(request.pipeline ? 2 : 1);
    request.evaluate_batches = std::uint64_t{request.shape.micro_batches} * data.ranks;
    const auto optimizer = make_optimizer(optimizer_name, {});
    for (u32 rank = 0; rank < request.mesh.size(); ++rank) {
      StepMap::Options options{.recipe = rules::Recipe::of(model.dtype, "fp32", optimizer->states()),
                               .shape = request.shape,
                               .chunk_elements = memory::Layout::kBlockElements,
                               .mesh = request.mesh,
                               .data = request.data,
                               .rank = rank,
                               .layer_unit = optimizer->layer_unit()};
      if (request.pipeline) options.pipeline = placement_of(*request.pipeline);
      maps.push_back(std::make_unique<StepMap>(model, options));
      programs.push_back(planning::write_programs(*maps.back(), request, 0, 1));
    }
  }
  void check(Program planning::Programs::*which) const {
    std::vector<passes::RankProgram> all;
    for (std::size_t r = 0; r < maps.size(); ++r) all.push_back({*maps[r], programs[r].*which});
    passes::check_collectives(all);
  }

  Model model;
  PlanRequest request;
  std::vector<std::unique_ptr<StepMap>> maps;
  std::vector<planning::Programs> programs;
};

TEST(Collectives, AllRanksIssueTheSameInOneOrder) {
  int runs = 0;
  for (const std::string order : {"", "1f1b", "zb-v", "chimera", "pipedream-2bw"})
    for (const std::string optimizer : {"adamw", "muon", "adafactor"})
      for (const u32 ranks : {1U, 2U, 6U})
        for (u32 zero = 0; zero <= 3; ++zero)
          for (const u32 shard_group : {0U, 2U})
            for (const bool canonical : {false, true}) {
              if (shard_group != 0 && (zero == 0 || ranks == 1)) continue;
              SCOPED_TRACE(fmt::format("{} {} on {} data ranks, ZeRO-{} in groups of {}{}", order, optimizer, ranks, zero,
                                       shard_group, canonical ? ", canonical" : ""));
              const test::DataRanks data{.ranks = ranks, .zero = zero, .canonical = canonical, .shard_group = shard_group};
              const Ranks all(order, data, optimizer, order != "pipedream-2bw");
              for (const auto which : {&planning::Programs::first, &planning::Programs::steady, &planning::Programs::drain,
                                       &planning::Programs::evaluate, &planning::Programs::fill, &planning::Programs::gather,
                                       &planning::Programs::visit})
                ASSERT_NO_THROW(all.check(which));
              ++runs;
            }
  EXPECT_EQ(5 * 3 * (2 * 2 * 4 + 2 * 2 * 3 + 2 * 4), runs);
}

void expect_refused(const Ranks& ranks, Program planning::Programs::*which, const std::string& part) {
  EXPECT_THAT(test::refusal_of([&] { ranks.check(which); }), HasSubstr(part));
}

auto first_of(Program& program, Op op) { return std::ranges::find(program.actions, op, &Action::op); }

// The ranks would add up gradients of different groups.
TEST(Collectives, ARankThatLeavesAReductionOutIsNamed) {
  Ranks ranks("", {.ranks = 2, .zero = 2});
  auto& program = ranks.programs[1].steady;
  program.actions.erase(first_of(program, Op::reduce));
  expect_refused(ranks, &planning::Programs::steady, "data rank 1 of pipeline rank 0: ");
}

// Both calls have the same number of bytes, but other ranks and other operations.
TEST(Collectives, ARankInAnotherOrderIsNamed) {
  Ranks ranks("", {.ranks = 2, .zero = 2});
  auto& actions = ranks.programs[1].steady.actions;
  const auto reduce = first_of(ranks.programs[1].steady, Op::reduce), gather = first_of(ranks.programs[1].steady, Op::gather);
  ASSERT_NE(actions.end(), reduce);
  ASSERT_NE(actions.end(), gather);
  std::swap(*reduce, *gather);
  expect_refused(ranks, &planning::Programs::steady, "data rank 0 of pipeline rank 0: gather l");
}

TEST(Collectives, ADirectionThatLeavesAReductionOutIsNamed) {
  Ranks ranks("chimera", {});
  auto& program = ranks.programs[1].steady;
  const auto reduce = first_of(program, Op::reduce);
  ASSERT_NE(program.actions.end(), reduce);
  const auto text = to_text(*reduce);
  program.actions.erase(reduce);
  expect_refused(ranks, &planning::Programs::steady, "data rank 0 of pipeline rank 1: nothing more");
}

TEST(Collectives, AStageWithoutAVerdictIsNamed) {
  Ranks ranks("pipedream-2bw", {}, "adamw", false);
  auto& actions = ranks.programs[0].steady.actions;
  std::erase_if(actions, [](const Action& a) { return a.op == Op::verdict; });
  expect_refused(ranks, &planning::Programs::steady,
                 "data rank 0 of pipeline rank 0: nothing more\n  data rank 0 of pipeline rank 1: verdict u0");
}

// A record says what is issued: here a group of gradients goes to its owner in its wire dtype.
TEST(Collectives, ARecordNamesItsBytes) {
  const Ranks ranks("", {.ranks = 2, .zero = 2, .gradients = Travel::bf16});
  const auto& map = *ranks.maps[1];
  const auto all = mapping::collectives_of(map, {.op = Op::reduce, .layer = 1, .micro_batch = 0, .chunk = 0});
  ASSERT_EQ(1U, all.size());
  const auto& c = all.front();
  const auto group = 2 * memory::Layout::kBlockElements * sizeof(float);
  EXPECT_EQ(comm::Operation::reduce_scatter, c.operation);
  EXPECT_EQ(mesh::Members{Axis::shard}, mesh::reduced_to(map.mesh(), c.members));
  EXPECT_EQ((mapping::ChunkBytes{map.gradients(1), 1, 0, group}), c.from);
  EXPECT_EQ((mapping::ChunkBytes{map.state(ChunkKind::gradient, 1, 1), 1, 0, group / 2}), c.to);
  EXPECT_EQ((comm::Reduction{.from = DType::bf16, .to = DType::fp32}), c.reduction);
  EXPECT_EQ(group / 2, mapping::wire_bytes(c));
  const auto uses = mapping::uses_of(map, all);
  ASSERT_EQ(2U, uses.size());
  EXPECT_EQ(Access::read, uses[0].access);
  EXPECT_EQ(Access::overwrite, uses[1].access) << "the first micro-batch begins the sum";
}

}  // namespace
}  // namespace terrace
