// Mixtures of experts in the engine: budgets, orders, tiers and recomputation change no bit, and every mesh trains what one
// rank trains.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tensor_run.h"

namespace terrace::test {
namespace {

class ExpertRuns : public TensorRuns {};

TensorRun of(lm::ModelConfig config, const layers::Experts& experts) {
  config.experts = experts;
  return {.config = std::move(config)};
}
// With the router's own losses, whose gradients no rank may count twice.
const layers::Experts kFour{.count = 4, .chosen = 2, .balance_loss = 0.05, .square_loss = 0.01};
const layers::Experts kDropping{.count = 3, .chosen = 2, .shared = 1, .capacity_factor = 0.75, .balance_loss = 0.05};

TEST_F(ExpertRuns, BudgetsOrdersAndTiersChangeNoBit) {
  for (const auto& experts : {kFour, kDropping})
    for (const auto& config : {gpt2(), llama()}) {
      auto o = of(config, experts);
      o.micro_batches = 3;
      o.store = new_store();
      const auto plain = run_all(o).front();
      for (const bool disk : {false, true})
        for (const auto order : {Order::horizontal, Order::vertical}) {
          auto other = o;
          other.store = new_store();
          other.squeezed = true;
          other.disk_tier = disk;
          other.order = order;
          other.recompute = disk;
          const auto found = run_all(other).front();
          ASSERT_EQ(found.refusal, "");
          EXPECT_EQ(first_difference(found.weights, plain.weights), "") << "disk " << disk;
          EXPECT_EQ(found.losses, plain.losses);
          EXPECT_EQ(found.norms, plain.norms);
          EXPECT_EQ(found.held_out, plain.held_out);
        }
    }
}

TEST_F(ExpertRuns, TensorRanksTrainWhatOneRankTrains) {
  for (const auto& experts : {kFour, kDropping})
    for (const auto& config : {gpt2(), llama()})
      for (const bool sequence : {false, true}) {
        auto o = of(config, experts);
        o.tensor_ranks = 2;
        o.sequence = sequence;
        expect_serial(o, kFp64);
        o.config.dtype = DType::fp32;
        o.recompute = true;
        expect_serial(o, kFp32);
      }
}

TEST_F(ExpertRuns, DataContextAndPipelineRanksTrainWhatOneRankTrainsInEveryStage) {
  for (std::uint32_t zero = 0; zero <= 3; ++zero)
    for (const auto& [data, tensor, schedule] :
         {std::tuple{2U, 1U, ""}, {2U, 2U, ""}, {1U, 1U, "1f1b"}, {2U, 1U, "zb-h1"}, {1U, 2U, "1f1b"}}) {
      auto o = of(zero % 2 == 0 ? gpt2() : llama(), zero < 2 ? kFour : kDropping);
      o.data = {.ranks = data, .zero = zero};
      o.tensor_ranks = tensor;
      o.schedule = schedule;
      o.squeezed = o.disk_tier = (zero + data) % 2 == 0;
      o.recompute = zero == 3;
      expect_serial(o, kFp64);
    }
  auto o = of(llama(), {.count = 4, .chosen = 2, .square_loss = 0.01});
  o.config.seq_len = 24;
  o.batch = {2, 24};
  o.context = 4;
  expect_serial(o, kFp64);
}

// Of the router's losses: what is counted of one micro-batch cannot be counted of a slice of it.
TEST_F(ExpertRuns, ContextRanksRefuseWhatCountsTheTokensOfAMicroBatch) {
  for (const auto& [experts, setting] : {std::pair{layers::Experts{.count = 2, .balance_loss = 0.1}, "router_aux_loss"},
                                         {layers::Experts{.count = 2, .capacity_factor = 1}, "expert_capacity"}}) {
    auto config = llama();
    config.experts = experts;
    config.context = {.ranks = 2};
    try {
      static_cast<void>(lm::make_model(config));
      ADD_FAILURE() << setting << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::usage);
      EXPECT_THAT(error.what(), testing::HasSubstr(setting));
    }
  }
}

}  // namespace
}  // namespace terrace::test
