// Ranks that update their own copies and average them now and then do what as many runs of one rank do if their weights are
// averaged between the steps.
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include <terrace/optimizers/schedule.h>
#include <terrace/parallel/map/exchange.h>
#include <terrace/tests/doubles/ledger.h>

#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/data_ranks.h>

namespace terrace {
namespace {

class LocalSgd : public test::FolderTest {
 protected:
  [[nodiscard]] toy::RunOptions options(std::uint32_t ranks, std::uint64_t every, const std::string& store) const {
    toy::RunOptions o;
    o.shape = {{1, 8}, 2};
    o.data = {.ranks = ranks, .local = true};
    o.average_every = every;
    o.store = folder_ / store;
    return o;
  }
  static std::uint64_t hash(const toy::RunOptions& o) { return toy::hash_of_ranks(o); }
};

// All weights of an engine, widened to Number.
template <class Number>
using Weights = std::map<std::string, std::vector<Number>>;
template <class Number>
Weights<Number> weights_of(toy::Training& replica) {
  Weights<Number> all;
  replica.engine->visit([&](const ParamSpec& param, std::uint64_t, TensorView range) {
    auto& numbers = all[param.name];
    for (std::int64_t i = 0; i < range.elements(); ++i)
      numbers.push_back(range.dtype == DType::bf16   ? static_cast<Number>(static_cast<float>(range.as<bf16>()[i]))
                        : range.dtype == DType::fp64 ? static_cast<Number>(range.as<double>()[i])
                                                     : static_cast<Number>(range.as<float>()[i]));
  });
  return all;
}

// One single-rank engine for each copy, stepped in turn. The oracle has its own code for updates and averages, so that no
// trainer is compared with itself.
template <class Number>
class Oracle {
 public:
  explicit Oracle(const toy::RunOptions& o) : o_(o) {
    auto alone = o;
    alone.data = {};
    alone.average_every = 0;
    for (std::uint32_t r = 0; r < o.data.ranks; ++r) {
      alone.store = o.store / ("replica" + std::to_string(r));
      replicas_.push_back(std::make_unique<toy::Training>(alone));
    }
  }
  std::uint64_t hash() {
    for (std::uint64_t s = 1; s <= o_.steps; ++s) {
      for (std::uint32_t r = 0; r < o_.data.ranks; ++r) step(*replicas_[r], s, r);
      if (s % o_.average_every == 0) average();
    }
    return replicas_.front()->hash();
  }

 private:
  // Trains on the sequences that rank r has in a step: every ranks-th micro-batch of the global batch.
  void step(toy::Training& replica, std::uint64_t s, std::uint32_t r) {
    const auto per = static_cast<std::uint64_t>(o_.shape.batch.tokens());
    std::vector<std::int32_t> tokens, targets;
    for (std::uint64_t m = r; m < o_.shape.micro_batches * o_.data.ranks; m += o_.data.ranks)
      for (std::uint64_t i = m * per; i < (m + 1) * per; ++i) {
        tokens.push_back(replica.draw(s, i));
        targets.push_back(i % 7 == 0 ? -1 : replica.draw(s, i + 1));
      }
    UpdateStep update{.step = s, .learning_rate = 1e-2, .gradient_scale = 1};
    const auto result = replica.engine->step(
        {.tokens = tokens, .targets = targets, .loss_scale = 1.0 / static_cast<double>(tokens.size()), .update = update});
    if (o_.before_use) update.gradient_scale = clip_factor(result.gradient_norm, 0.5);
    replica.engine->set_pending(update);
  }
  void average() {
    std::vector<Weights<Number>> all;
    for (auto& replica : replicas_) all.push_back(weights_of<Number>(*replica));
    auto& mean = all.front();
    const auto& layout = replicas_.front()->engine->map().layout();
    for (std::uint32_t l = 0; l < layout.layers(); ++l)
      for (const auto& param : layout.params(l)) {
        if (param.frozen || param.tied) continue;
        auto& numbers = mean.at(param.name);
        for (std::size_t i = 0; i < numbers.size(); ++i) {
          for (std::size_t r = 1; r < all.size(); ++r) numbers[i] += all[r].at(param.name)[i];
          numbers[i] /= static_cast<Number>(all.size());
        }
      }
    for (auto& replica : replicas_)
      replica->engine->fill([&](const ParamSpec& param, std::uint64_t first, TensorView range) {
        const auto* const from = mean.at(param.name).data() + first;
        for (std::int64_t i = 0; i < range.elements(); ++i) {
          if (range.dtype == DType::bf16) range.as<bf16>()[i] = bf16(static_cast<float>(from[i]));
          if (range.dtype == DType::fp32) range.as<float>()[i] = static_cast<float>(from[i]);
          if (range.dtype == DType::fp64) range.as<double>()[i] = static_cast<double>(from[i]);
        }
      });
  }

  const toy::RunOptions o_;
  std::vector<std::unique_ptr<toy::Training>> replicas_;
};

TEST_F(LocalSgd, IsSoManyRunsWhoseWeightsAreAveraged) {
  for (const auto& [ranks, every] : {std::pair{2U, 3U}, {3U, 2U}, {4U, 6U}, {2U, 1U}}) {
    auto o = options(ranks, every, "run");
    EXPECT_EQ(hash(o), Oracle<float>(options(ranks, every, "oracle")).hash()) << ranks << " ranks, every " << every;
    o.before_use = false;
    auto other = options(ranks, every, "oracle");
    other.before_use = false;
    EXPECT_EQ(hash(o), Oracle<float>(other).hash()) << ranks << " ranks, every " << every << ", updates in the backward";
  }
}

TEST_F(LocalSgd, HoweverTheWeightsAreKept) {
  for (const auto& [dtype, recipe] : {std::pair{DType::bf16, "fp32"},
                                      {DType::bf16, "split-8bit"},
                                      {DType::bf16, "split24-8bit"},
                                      {DType::bf16, "stochastic"},
                                      {DType::fp64, "fp32"}}) {
    auto o = options(3, 2, "run"), other = options(3, 2, "oracle");
    for (auto* const each : {&o, &other}) {
      each->sizes.dtype = dtype;
      each->recipe = recipe;
    }
    EXPECT_EQ(hash(o), dtype == DType::fp64 ? Oracle<double>(other).hash() : Oracle<float>(other).hash()) << recipe;
  }
}

// The sum of three equal weights may be rounded, so frozen weights must not be averaged.
TEST_F(LocalSgd, AveragesOnlyWhatTrains) {
  auto o = options(3, 2, "run"), other = options(3, 2, "oracle");
  for (auto* const each : {&o, &other}) {
    each->sizes.tied = false;
    each->freeze = "embed,blocks.1";
  }
  EXPECT_EQ(hash(o), Oracle<float>(other).hash());
  const auto planned = plan(toy::make_model(o.sizes), toy::request_of(o), o.profile);
  EXPECT_LT(planned.trained_parameters, planned.parameters);
  EXPECT_EQ(planned.average.summed_bytes, planned.trained_parameters * sizeof(float));
}

// Copies on disk have the bits of copies in memory, and a run that stopped between two averages resumes each rank from its own
// copy.
TEST_F(LocalSgd, GoesOnBetweenTwoAverages) {
  const auto expected = hash(options(2, 3, "whole"));
  auto o = options(2, 3, "cut");
  o.disk_tier = true;
  o.budget = {kUnlimited, 2 * kMiB, 256 * kMiB};
  o.commit_after = 4;
  const auto cut = toy::run_ranks(o);
  EXPECT_NE(cut.ranks[0].hash, cut.ranks[1].hash) << "copies between two averages are alike";
  o.commit_after = 0;
  o.resume = true;
  EXPECT_EQ(hash(o), expected);
}

// Each average is one all-reduce of all weights; apart from that, only losses are exchanged.
TEST_F(LocalSgd, TheLedgerIsTheFormula) {
  const auto o = options(3, 3, "run");
  const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
    Ledger ledger;
    const auto comm = with_ledger(std::move(rank.comm), ledger);
    toy::Training training(toy::of_rank(o, comm->rank()), comm.get());
    const auto weights = training.engine->map().layout().tensor_elements() * sizeof(float),
               losses = std::uint64_t{2} * 3 * sizeof(double);
    for (std::uint64_t s = 1; s <= 6; ++s) {
      ledger.clear();
      training.step();
      const auto sent = ledger.of("world", comm::Operation::all_reduce);
      EXPECT_EQ(sent.payload_bytes, losses + (s % 3 == 0 ? weights : 0)) << "step " << s;
      EXPECT_EQ(
          ledger.of("world", comm::Operation::reduce_scatter).calls + ledger.of("world", comm::Operation::all_gather).calls,
          0U);
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

// The planned bytes and calls of an average, and of a step in the mean, equal those in the ledger.
TEST_F(LocalSgd, ThePlanIsTheLedger) {
  for (const auto dtype : {DType::fp32, DType::bf16, DType::fp64}) {
    auto o = options(3, 3, std::string(name_of(dtype)));
    o.sizes.dtype = dtype;
    if (dtype == DType::bf16) o.recipe = "stochastic";  // sums are wider than the weights that are kept
    const auto errors = test::on_threads(3, {std::chrono::seconds(60)}, [&](test::Rank& rank) {
      Ledger ledger;
      const auto comm = with_ledger(std::move(rank.comm), ledger);
      toy::Training training(toy::of_rank(o, comm->rank()), comm.get());
      const auto& planned = training.planned;
      const auto sums = mapping::average_of(training.engine->map());
      double sent = 0;
      for (std::uint64_t s = 1; s <= 6; ++s) {
        if (s % 3 == 1) sent = 0;
        ledger.clear();
        training.step();
        const auto step = ledger.of("world", comm::Operation::all_reduce);
        sent += static_cast<double>(step.sent_bytes);
        if (s % 3 != 0) {
          EXPECT_EQ(step.calls, 1U) << "losses";
          continue;
        }
        const auto losses = mapping::results_of(training.engine->map(), planned.programs.steady).front().bytes;
        EXPECT_EQ(step.payload_bytes, losses + planned.average.summed_bytes);
        EXPECT_EQ(step.calls, 1 + sums.size());
        // In both directions of a sum, a rank sends a whole number of elements, so the formula is exact up to rounding.
        const auto rounding = static_cast<double>(2 * sizeof(double) * (sums.size() + 3));
        EXPECT_NEAR(sent, 3 * (planned.steady_links.within + planned.steady_links.between), rounding);
      }
    });
    for (const auto& error : errors) EXPECT_EQ(error, "") << name_of(dtype);
  }
}

// A step's planned time includes its share of an average, even if averages are rarer than the steps that are simulated.
TEST_F(LocalSgd, ThePlannedStepHasItsPartOfAnAverage) {
  for (const bool disk : {false, true}) {
    auto o = options(2, 0, "plan");
    o.before_use = false;  // no update is pending, so all steps are alike
    o.steps = 2000;
    if (disk) toy::squeeze(o, true);
    const auto model = toy::make_model(o.sizes);
    const auto alone = plan(model, toy::request_of(o), o.profile);
    ASSERT_TRUE(alone.fits) << alone.refusal.why;
    EXPECT_EQ(alone.average.every, 0U);
    for (const std::uint64_t every : {2, 5, 1000}) {
      o.average_every = every;
      const auto p = plan(model, toy::request_of(o), o.profile);
      ASSERT_TRUE(p.fits) << p.refusal.why;
      const auto n = static_cast<double>(every);
      EXPECT_EQ(p.average.every, every);
      EXPECT_EQ(p.average.summed_bytes, p.parameters * sizeof(float));
      EXPECT_GE(p.average.seconds, (p.average.links.within + p.average.links.between) / o.profile.memory_copy);
      if (!disk) {
        EXPECT_NEAR(p.times.seconds, alone.times.seconds + p.average.seconds / n, 1e-9 * p.times.seconds);
      }
      EXPECT_GT(p.times.seconds, p.average.seconds / n);
      EXPECT_EQ(disk, p.average.traffic != memory::Traffic{});
      EXPECT_EQ(traffic_of_step(p).read, p.steady_traffic.read + p.average.traffic.read / every);
    }
  }
}

TEST_F(LocalSgd, WhatSharesStateIsRefused) {
  const auto refused = [&](const test::DataRanks& data) {
    auto o = options(2, 2, "refused");
    o.data = data;
    EXPECT_THROW(plan(toy::make_model(o.sizes), toy::request_of(o), o.profile), Error);
  };
  refused({.ranks = 2, .zero = 1, .local = true});
  refused({.ranks = 2, .canonical = true, .local = true});
}

}  // namespace
}  // namespace terrace
