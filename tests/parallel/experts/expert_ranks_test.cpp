// Expert parallelism: experts divided among ranks train what one rank trains, with every other kind of parallelism.
#include <gmock/gmock.h>

#include <terrace/examples/lm/models/adapters.h>
#include <terrace/parallel/layers/mlp/expert_rows.h>

#include <terrace/tests/parallel/tensor/tensor_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::test {
namespace {

using testing::HasSubstr;

class ExpertRanks : public TensorRuns {
 protected:
  // The same eight micro-batches on expert and data ranks, with its own store.
  TensorRun dealt(TensorRun o, std::uint32_t experts, std::uint32_t data) {
    o.experts = experts;
    o.data = {.ranks = data, .zero = data > 1 ? 3U : 0U};
    o.micro_batches = 8 / experts / data;
    o.store = new_store();
    return o;
  }
};

TensorRun of(lm::ModelConfig config, const layers::Experts& experts, std::uint32_t ranks) {
  config.experts = experts;
  return {.config = std::move(config), .experts = ranks, .micro_batches = 1};
}
// With the router's own losses, which must not depend on how the experts are divided.
const layers::Experts kTwentyFour{.count = 24, .chosen = 2, .balance_loss = 0.05, .square_loss = 0.01};
const layers::Experts kDropping{
    .count = 24, .chosen = 3, .shared = 2, .capacity_factor = 0.75, .renormalise = false, .balance_loss = 0.05};

TEST_F(ExpertRanks, TrainWhatOneRankTrains) {
  OneIn chosen(2);
  for (const std::uint32_t ranks : {2U, 3U, 4U, 8U})
    for (const auto& experts : {kTwentyFour, kDropping}) {
      if (!chosen()) continue;
      auto o = of(ranks % 2 == 0 ? gpt2() : llama(), experts, ranks);
      o.micro_batches = ranks == 8 ? 1 : 2;
      expect_serial_in_both(o);
    }
}

// Other ranks also share tokens, sequences, layers and matrices; states are sharded, in small budgets, and on disk.
TEST_F(ExpertRanks, ComposeWithAllOtherRanks) {
  OneIn chosen(3);
  struct Others {
    std::uint32_t data = 1, tensor = 1, context = 1, ring = 1;
    const char* schedule = "";
    bool sequence = false;
  };
  for (std::uint32_t zero = 0; zero <= 3; ++zero)
    for (const auto& with : {Others{.data = 2}, Others{.tensor = 2, .sequence = true}, Others{.context = 2},
                             Others{.context = 2, .ring = 2}, Others{.schedule = "1f1b"}, Others{.schedule = "zb-h1"},
                             Others{.data = 2, .schedule = "1f1b"}, Others{.tensor = 2, .schedule = "1f1b"}}) {
      if (!chosen()) continue;
      auto o = of(zero % 2 == 0 ? gpt2() : llama(), {.count = 4, .chosen = 2, .shared = 1, .balance_loss = 0.05}, 2);
      o.data = {.ranks = with.data, .zero = zero};
      o.tensor_ranks = with.tensor;
      o.sequence = with.sequence;
      o.context = with.context;
      o.config.place.ring = with.ring;
      o.schedule = with.schedule;
      o.micro_batches = 2;
      o.squeezed = o.disk_tier = (zero + with.data + with.tensor) % 2 == 0;
      o.recompute = zero == 3;
      expect_serial(o, kFp64);
    }
}

// Documents, so that the number of targets differs between ranks, and exchanges of other axes beside products.
TEST_F(ExpertRanks, HaveDocumentsAndPieces) {
  for (const auto& config : {gpt2(), llama()}) {
    auto o = of(config, {.count = 4, .chosen = 2, .balance_loss = 0.05}, 2);
    o.documents = [](Split, auto sequences, auto, auto numbers) {
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = static_cast<std::int32_t>(i % 16 > 2 + sequences[i / 16] % 9);
    };
    expect_serial(o, kFp64);
    o.tensor_ranks = 2;
    o.sequence = true;
    o.pieces = 3;
    o.schedule = "1f1b";
    o.micro_batches = 2;
    expect_serial(o, kFp64);
  }
}

TEST_F(ExpertRanks, BudgetsOrdersTiersAndStagesChangeNoBit) {
  for (const auto& experts : {kTwentyFour, kDropping}) {
    auto o = of(llama(), experts, 2);
    o.micro_batches = 3;
    expect_no_bit_changes_in_little_memory(o);
  }
  auto o = of(gpt2(), kTwentyFour, 2);
  o.data.ranks = 2;
  const auto plain = run(o);
  for (std::uint32_t zero = 1; zero <= 3; ++zero) {
    o.data.zero = zero;
    expect_same(plain, run(o), fmt::format("ZeRO-{}", zero));
  }
}

// Some ranks have nothing to compute, and one rank gets the rows of all.
TEST_F(ExpertRanks, ARouterThatSendsEveryTokenToOneExpertStaysWithinTheBudget) {
  auto o = of(llama(), {.count = 4, .chosen = 1}, 4);
  o.zeroed = "block_sparse_moe.gate.weight";
  const auto wide = expect_serial(o, kFp64);
  o.squeezed = o.disk_tier = true;
  expect_same(wide, run(o), "squeezed");
}

// The norm counts each parameter once, and all are clipped by the same factor; a clip may not single out one expert.
TEST_F(ExpertRanks, GroupsOfParametersAreClippedAsOnOneRank) {
  auto o = of(gpt2(), kTwentyFour, 4);
  o.param_groups = "experts:rate=0.5,clip=0.1; embed|wte:decay=0,clip=0.2";
  expect_serial(o, kFp64);
  o.param_groups = "experts\\.7\\.:rate=0.1";  // the other ranks have no such parameter
  expect_serial(o, kFp64);
  o.param_groups = "experts\\.7\\.:clip=0.1";
  o.store = new_store();
  auto config = o.config;
  config.place = {.mesh = {.expert = 4}, .rank = 1};
  const auto model = lm::make_model(config);
  const auto optimizer = make_optimizer("adamw", {});
  EXPECT_THAT(refusal_of([&] { static_cast<void>(plan(model, request_of(o, *optimizer, 1), {})); }),
              HasSubstr("not all experts"));
}

TEST_F(ExpertRanks, OptimizersOfWholeMatricesUpdateAsOnOneRank) {
  for (const auto* const optimizer : {"lamb", "adafactor", "muon"}) {
    auto o = of(llama(), kTwentyFour, 2);
    o.optimizer = optimizer;
    o.data = {.ranks = 2, .zero = 1};
    expect_serial(o, 1e-9);
  }
}

// The formula for what a step sends on the axis of expert ranks: in each block four all-to-alls (two each way) of the rows for
// other ranks, one all-gather of each rank's number of rows for each expert, and once a step the gradients of what all ranks
// share.
TEST_F(ExpertRanks, LedgerEqualsTheFormula) {
  const std::uint64_t ranks = 4, tokens = 32, hidden = 64, chosen = 4, count = 4;  // every token to every expert
  for (const std::uint32_t micro_batches : {1U, 3U}) {
    auto o = of(gpt2(), {.count = 4, .chosen = 4}, 4);
    o.micro_batches = micro_batches;
    o.store = new_store();
    const auto all = run_all(o);
    for (const auto& one : all) {
      const auto& moved = one.step.of("ep", comm::Operation::all_to_all);
      const auto calls = o.config.layers * micro_batches;
      EXPECT_EQ(moved.calls, 4 * calls);
      EXPECT_EQ(moved.payload_bytes, 4 * calls * tokens * chosen * hidden * sizeof(double));
      EXPECT_EQ(moved.sent_bytes, 4 * calls * tokens * chosen * hidden * sizeof(double) * (ranks - 1) / ranks);
      const auto& told = one.step.of("ep", comm::Operation::all_gather);
      EXPECT_EQ(told.calls, calls);
      EXPECT_EQ(told.payload_bytes, calls * ranks * count * sizeof(double));
      std::uint64_t in_common = 0;
      for (const auto& [name, values] : one.weights)
        if (name.find("experts.") == std::string::npos) in_common += values.size() * sizeof(double);
      const auto tied = one.weights.at("transformer.wte.weight").size() * sizeof(double);  // it has two gradients
      EXPECT_EQ(one.step.of("expert", comm::Operation::all_reduce).payload_bytes, in_common + tied);
    }
  }
}

// In elements. Inputs, and what an activation reads, have room for the most rows that can arrive; results have the rows of the
// rank's own tokens.
TEST_F(ExpertRanks, ARankHoldsWhatTheFormulaSays) {
  const std::int64_t h = 64, f = 256, experts = 8, chosen = 3, shared = 1;
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    auto o = of(gpt2(), {.count = experts, .chosen = chosen, .shared = shared}, static_cast<std::uint32_t>(ranks));
    const auto tokens = o.batch.tokens();
    o.config.place = {.mesh = {.expert = o.experts}, .rank = o.experts - 1};
    const auto model = lm::make_model(o.config);
    const auto elements = [](const auto& specs) {
      std::int64_t all = 0;
      for (const auto& s : specs) all += s.shape.elements();
      return all;
    };
    const auto& layer = *model.layers[2];
    EXPECT_EQ((experts / ranks + shared) * 2 * h * f + experts * h + 2 * h, elements(layer.params())) << ranks << " ranks";
    const auto own = (chosen + shared) * tokens;
    const auto computed = ranks == 1 ? own : ranks * std::min(chosen, experts / ranks) * tokens + shared * tokens;
    const auto routed = tokens * (2 + experts + 1 + (chosen + shared) + chosen + (chosen + shared));
    EXPECT_EQ(routed + computed * (h + f) + own * h, elements(layer.facts(o.batch).saved)) << ranks << " ranks";
    EXPECT_EQ(computed * (h + f) + tokens * (experts + h), elements(layer.facts(o.batch).carried)) << ranks << " ranks";
  }
}

// A run resumes with its experts divided another way: names and files do not depend on it.
TEST_F(ExpertRanks, ARunGoesOnWithExpertsDealtOutInAnotherWay) {
  auto o = of(llama(), kTwentyFour, 1);
  o.micro_batches = 8;
  o.steps = 4;
  const auto whole = run(o);
  auto first = dealt(o, 4, 1);
  first.commit_after = 2;
  run_all(first);
  auto second = dealt(o, 2, 2);
  second.resume = true;
  for (std::uint32_t r = 0; r < first.ranks(); ++r) second.reshard_from.push_back(first.store / ("rank" + std::to_string(r)));
  second.commit_after = 3;
  run_all(second);
  auto third = dealt(o, 1, 1);
  third.resume = true;
  for (std::uint32_t r = 0; r < second.ranks(); ++r) third.reshard_from.push_back(second.store / ("rank" + std::to_string(r)));
  const auto end = run_all(third).front();
  EXPECT_NEAR(end.losses.back(), whole.losses.back(), 1e-11 * whole.losses.back());
  EXPECT_NEAR(end.held_out, whole.held_out, 1e-11 * whole.held_out);
}

// A rank stores the packed state of its experts under these experts' names. An adapter of rank 1 is not a matrix for Muon,
// which packs the state of what it does not orthogonalise.
TEST_F(ExpertRanks, PackedSecondMomentsGoWithTheirExperts) {
  for (const std::string optimizer : {"adafactor", "muon"}) {
    auto o = of(llama(), {.count = 4, .chosen = 2}, 1);
    o.optimizer = optimizer;
    if (optimizer == "muon") o.config.adapters = lm::adapters_of(o.config.family, true, 1, 5, "all");
    o.micro_batches = 8;
    o.steps = 4;
    const auto whole = run(o);
    auto first = dealt(o, 2, 1);
    first.commit_after = 2;
    run_all(first);
    for (const auto& [experts, data] : {std::pair{1U, 1U}, {4U, 1U}, {2U, 2U}}) {
      auto second = dealt(o, experts, data);
      expect_equal(end_of(whole, 2), resume_as(second, first), 1e-9, fmt::format("{}, {}", optimizer, name_of(second)));
    }
  }
}

// Rows sent there and back, drawn at random: each block begins where the previous one ends, and each rank receives what the
// other one sends.
TEST(ExpertRows, BlocksOfAllRanksFitTogether) {
  const std::uint64_t seed = 11;
  for (std::uint64_t draw = 0; draw < 200; ++draw) {
    const auto below = [&](std::uint64_t what, std::uint64_t n) { return math::random_below(seed, draw, what, n); };
    const auto ranks = static_cast<std::uint32_t>(1 + below(0, 5)), each = static_cast<std::uint32_t>(1 + below(1, 4));
    const Routing routing{.experts = std::int64_t{ranks} * each, .chosen = 1, .shared = static_cast<std::int64_t>(below(2, 3))};
    const std::int64_t tokens = 16, width = 3;
    std::vector<layers::ExpertRows> rows;
    for (std::uint32_t r = 0; r < ranks; ++r) rows.emplace_back(routing, ExpertParallel{ranks, r}, tokens, width);
    std::vector<std::vector<double>> reports;
    for (std::uint32_t r = 0; r < ranks; ++r) reports.emplace_back(static_cast<std::size_t>(rows[r].report_size()), 0.0);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      auto* const own = reports[r].data() + RoutingReport::kRows;
      for (std::int64_t e = 0; e < routing.experts; ++e)
        own[e] = below(3 + r, 2) == 0 ? 0.0 : static_cast<double>(below(100 + r * 50 + static_cast<std::uint64_t>(e), 3));
      for (std::int64_t s = 0; s < routing.shared; ++s) own[routing.experts + s] = static_cast<double>(tokens);
      for (std::uint32_t to = 0; ranks > 1 && to < ranks; ++to)
        std::copy_n(own, routing.experts, reports[to].data() + rows[to].counts() + r * routing.experts);
    }
    for (std::uint32_t r = 0; ranks > 1 && r < ranks; ++r) rows[r].tell(reports[r].data());
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const auto* const report = reports[r].data();
      std::int64_t received = 0, computed = 0;
      for (std::uint32_t other = 0; ranks > 1 && other < ranks; ++other) {
        const auto there = rows[r].there();
        EXPECT_EQ(report[there.received + other], reports[other][rows[other].there().sent + r])
            << "seed " << seed << ", " << draw;
        received += static_cast<std::int64_t>(report[there.received + other]) / width;
      }
      // From each rank, the rows of this rank's experts, one expert after the other.
      for (std::uint32_t from = 0; from < (ranks > 1 ? ranks : 0); ++from)
        for (std::uint32_t e = 0; e < each; ++e) {
          const auto block = rows[r].computed(report, e).at(from);
          EXPECT_EQ(block.begin, computed) << "seed " << seed << ", " << draw;
          EXPECT_EQ(block.count, static_cast<std::int64_t>(reports[from][RoutingReport::kRows + r * each + e]));
          computed += block.count;
        }
      EXPECT_EQ(computed, received) << "seed " << seed << ", " << draw;
      for (auto e = rows[r].chosen_here(); e < rows[r].here(); ++e) {
        const auto block = rows[r].computed(report, e).front();
        EXPECT_GE(block.begin, computed);
        EXPECT_LE(block.begin + block.count, rows[r].most_computed());
        EXPECT_EQ(rows[r].own(report, e).count, tokens);
      }
    }
  }
}

TEST_F(ExpertRanks, RefusesWhatDoesNotGoWithThem) {
  const auto why = [&](const layers::Experts& experts, std::uint32_t ranks, const std::function<void(TensorRun&)>& change) {
    auto o = of(llama(), experts, ranks);
    change(o);
    return refusal_of([&] {
      auto config = o.config;
      config.place.mesh.expert = ranks;
      const auto model = lm::make_model(config);
      const auto optimizer = make_optimizer("adamw", {});
      static_cast<void>(plan(model, request_of(o, *optimizer, 0), {}));
    });
  };
  const auto as_it_is = [](TensorRun&) {};
  EXPECT_THAT(why(kTwentyFour, 5, as_it_is), HasSubstr("`ep` 5: it must divide 24 experts\n  nearest legal: 4 and 6"));
  EXPECT_THAT(why({}, 2, as_it_is), HasSubstr("`ep` 2: the model has no experts"));
  EXPECT_THAT(why(kTwentyFour, 2, [](TensorRun& o) { o.experts = 3; }), HasSubstr("the model was made for 2"));
  EXPECT_THAT(why(kTwentyFour, 2, [](TensorRun& o) { o.data.canonical = true; }), HasSubstr("canonical-reduction"));
  EXPECT_THAT(why(kTwentyFour, 2, [](TensorRun& o) { o.data = {.ranks = 2, .local = true}; }), HasSubstr("local SGD"));
}

}  // namespace
}  // namespace terrace::test
