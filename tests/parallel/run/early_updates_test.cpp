// Early updates: whatever becomes of them, the bits are those of updates that wait for the norm. Each case runs a random series
// of steps twice and compares losses, norms, weights, masters and moments; the seed is printed.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <terrace/parallel/plan/check_request.h>
#include <terrace/parallel/train/progress.h>
#include <terrace/tests/support/folder_test.h>

#include <terrace/tests/parallel/run/committed_hashes.h>
#include <terrace/tests/parallel/zero/data_parallel_run.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::toy {
namespace {

enum class Fate : std::uint8_t { held, clipped, clipped_groups, skipped, forgotten, without_targets, kFates };

struct Script {
  struct Step {
    Fate fate{};
    bool evaluates = false, commits = false, resumes = false;
  };
  std::vector<Step> steps;

  // Half of the steps do not clip, so that the next ones update early.
  Script(std::uint64_t seed, std::size_t count) {
    std::mt19937_64 random(seed);
    const auto one_in = [&](std::uint64_t n) { return random() % n == 0; };
    for (std::size_t s = 0; s < count; ++s) {
      const auto fate = one_in(2) ? Fate::held : static_cast<Fate>(random() % static_cast<std::uint64_t>(Fate::kFates));
      steps.push_back({fate, one_in(6), one_in(5), one_in(7)});
    }
  }
};

struct Result {
  std::vector<double> numbers;
  std::map<std::string, std::uint64_t> committed;
  std::uint64_t early = 0, restored = 0;
};

class EarlyUpdatesTest : public test::FolderTest {
 protected:
  Result play(RunOptions o, const Script& script, const std::string& store) {
    Trace trace;
    o.store = folder_ / store;
    o.trace = &trace;
    Result out;
    auto training = std::make_unique<Training>(o);
    EXPECT_TRUE(training->planned.fits) << training->planned.refusal.why;
    if (!training->planned.fits) return out;
    std::uint64_t number = 0;  // of the updates so far
    for (std::size_t s = 0; s < script.steps.size(); ++s) {
      const auto& step = script.steps[s];
      auto& engine = *training->engine;
      std::vector<std::int32_t> tokens(training->tokens_a_step()), targets(tokens.size());
      for (std::size_t t = 0; t < tokens.size(); ++t)
        tokens[t] = training->draw(s + 1, t), targets[t] = training->draw(s + 1, t + 1);
      UpdateStep update{.step = number + 1, .learning_rate = 1e-2, .gradient_scale = 0.5, .seed = 7};
      if (step.fate == Fate::without_targets) update.step = UpdateStep::kNone;
      const auto r = engine.step(
          {.tokens = tokens, .targets = targets, .loss_scale = 2.0 / static_cast<double>(tokens.size()), .update = update});
      out.numbers.insert(out.numbers.end(), {r.loss_sum, r.gradient_norm});
      const bool applied = step.fate != Fate::skipped && step.fate != Fate::forgotten;
      number += applied && step.fate != Fate::without_targets;
      if (step.fate == Fate::clipped) update.gradient_scale *= 0.37;
      if (step.fate == Fate::skipped) engine.skip();
      if (applied) engine.set_pending(update, step.fate == Fate::clipped_groups ? std::vector{0.11} : std::vector<double>{});
      if (step.evaluates) {
        const auto size = static_cast<std::size_t>(o.shape.batch.tokens());
        const auto losses =
            engine.evaluate({.tokens = std::span(tokens).first(size), .targets = std::span(targets).first(size)});
        out.numbers.insert(out.numbers.end(), losses.begin(), losses.end());
      }
      if (step.commits || step.resumes) engine.begin_commit(s + 1, to_text(training::Progress{}));
      if (!step.resumes) continue;
      training.reset();
      o.resume = true;
      training = std::make_unique<Training>(o);
    }
    training->engine->commit(script.steps.size() + 1, to_text(training::Progress{}));
    out.numbers.push_back(static_cast<double>(training->hash()));
    const auto recipe = training->planned.map.recipe;
    const auto model = make_model(o.sizes);
    training.reset();
    std::vector<ChunkStore::Options> stores{{.paths = {o.store}, .durable = false}};
    out.committed = test::committed_hashes(model, recipe, stores);
    for (const auto& span : trace.spans()) {
      out.early += span.name.starts_with("early ");
      out.restored += span.name.starts_with("restore ");
    }
    return out;
  }
};

TEST_F(EarlyUpdatesTest, WhateverBecomesOfThemTheBitsAreThoseOfUpdatesThatWait) {
  const struct {
    DType dtype;
    const char *recipe, *optimizer;
  } numbers[] = {{DType::fp32, "fp32", "adamw"},     {DType::bf16, "bf16", "adamw"},         {DType::bf16, "split", "lion"},
                 {DType::bf16, "all-bf16", "adamw"}, {DType::bf16, "split24-8bit", "adamw"}, {DType::fp64, "fp32", "sgd"},
                 {DType::fp16, "8bit", "adagrad"}};
  std::uint64_t seed = 1, early = 0, restored = 0;
  for (const auto& n : numbers) {
    RunOptions o;
    o.shape = {{1, 16}, 2};
    o.sizes.dtype = n.dtype;
    o.recipe = n.recipe;
    o.make_optimizer = [&] { return make_optimizer(n.optimizer, {}); };
    o.param_groups = "scale:clip=1";
    o.threads = 1 + static_cast<int>(seed % 2);
    o.chunk_elements = seed % 3 == 0 ? 6'000 : 0;
    o.order = seed % 2 == 0 ? Order::vertical : Order::horizontal;
    const Script script(seed, 20);
    const auto reference = play(o, script, fmt::format("reference{}", seed));
    const auto wide = plan(make_model(o.sizes), request_of(o), o.profile);
    const Budget all{kUnlimited, kUnlimited, 0}, host{wide.smallest_bytes[Tier::device] + 64 * kKiB, kUnlimited, 256 * kMiB},
        disk{host.device, wide.smallest_bytes[Tier::host] * 3 + 256 * kKiB, host.disk};
    const struct {
      Budget budget;
      Tier update;
      std::uint32_t early;
    } runs[] = {{disk, Tier::host, 0}, {disk, Tier::host, 2}, {host, Tier::host, kAllLayers}, {all, Tier::device, 3}};
    for (const auto& run : runs) {
      o.budget = run.budget;
      o.disk_tier = run.budget.host != kUnlimited;
      o.update = run.update;
      o.early = run.early;
      SCOPED_TRACE(fmt::format("seed {}, {} {} {}, device {}, host {}, {} layers early", seed, name_of(n.dtype), n.recipe,
                               n.optimizer, o.budget.device, o.budget.host, run.early));
      const auto r = play(o, script, fmt::format("run{}-{}", seed, &run - runs));
      EXPECT_EQ(reference.numbers, r.numbers);
      EXPECT_EQ(reference.committed, r.committed);
      EXPECT_EQ(r.early > 0, run.early > 0);
      early += r.early;
      restored += r.restored;
    }
    ++seed;
  }
  EXPECT_GT(early, 300U);
  EXPECT_GT(restored, 50U);
  EXPECT_LT(restored, early);
}

// The trainer decides by the norm; every rank decides alike.
TEST_F(EarlyUpdatesTest, ANormThatClipsEverySecondStepGivesTheSameRunOnAllRanks) {
  for (const std::uint32_t ranks : {1U, 2U})
    for (const std::uint32_t zero : {0U, 3U}) {
      SCOPED_TRACE(fmt::format("{} ranks, ZeRO-{}", ranks, zero));
      RunOptions o;
      o.steps = 10;
      o.shape = {{1, 16}, 2};
      o.data = {.ranks = ranks, .zero = zero};
      o.greatest_norm = 1e9;
      const auto run = [&](const std::string& store) {
        auto own = o;
        own.store = folder_ / fmt::format("{}-{}-{}", store, ranks, zero);
        const auto all = run_ranks(own);
        for (const auto& error : all.errors) EXPECT_EQ(error, "");
        return all.ranks.front();
      };
      auto norms = run("measure").norms;
      std::ranges::sort(norms);
      o.greatest_norm = norms[norms.size() / 2];
      const auto waiting = run("waiting");
      o.early = 3;
      const auto early = run("early");
      EXPECT_EQ(waiting.losses, early.losses);
      EXPECT_EQ(waiting.norms, early.norms);
      EXPECT_EQ(waiting.hash, early.hash);
      const auto clips = std::ranges::count_if(early.norms, [&](double norm) { return norm > *o.greatest_norm; });
      EXPECT_GT(clips, 1);
      EXPECT_LT(clips, 9);
    }
}

// What the planner counts on: a step whose early updates hold moves the planned bytes and keeps within the planned peaks.
TEST_F(EarlyUpdatesTest, StepsThatHoldMoveWhatWasPlanned) {
  RunOptions o;
  o.greatest_norm = 1e9;
  o.early = 3;
  o.steps = 8;
  o.store = folder_ / "store";
  const auto wide = plan(make_model(o.sizes), request_of(o), o.profile);
  o.budget = {wide.smallest_bytes[Tier::device] + 64 * kKiB, wide.smallest_bytes[Tier::host] * 3 + 256 * kKiB, 256 * kMiB};
  o.disk_tier = true;
  o.update = Tier::host;
  const auto r = run(o);
  ASSERT_TRUE(r.planned.fits) << r.planned.refusal.why;
  for (std::size_t i = 0; i < r.traffic.size(); ++i) EXPECT_EQ(r.traffic[i], r.planned.step_traffic.at(i)) << "step " << i + 1;
  EXPECT_GT(r.planned.restoring_seconds, 0);
  for (const auto tier : {Tier::device, Tier::host}) EXPECT_LE(r.peak[tier], r.planned.peak_bytes[tier]);
}

TEST_F(EarlyUpdatesTest, AreRefusedWhereTheyCannotBeTakenBack) {
  const auto refusal = [](const RunOptions& o) -> std::string {
    return test::error_of([&] { planning::check_request(make_model(o.sizes), request_of(o)); });
  };
  RunOptions o;
  o.early = 2;
  EXPECT_EQ(refusal(o), "");
  auto without_clipping = o;
  without_clipping.before_use = false;
  EXPECT_NE(refusal(without_clipping), "");
  auto whole_layers = o;
  whole_layers.make_optimizer = [] { return make_optimizer("muon", {}); };
  EXPECT_NE(refusal(whole_layers), "");
  for (const std::uint32_t zero : {0U, 1U, 2U, 3U}) {
    auto shared = o;
    shared.data = {.ranks = 2, .zero = zero};
    EXPECT_EQ(refusal(shared).empty(), zero == 0 || zero == 3) << zero;
  }
}

}  // namespace
}  // namespace terrace::toy
