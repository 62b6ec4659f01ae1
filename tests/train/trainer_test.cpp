// The library's trainer with the toy model: which rank gets which sequences, what is clipped, skipped and committed; one rank
// and several must evaluate the same.
#include <gmock/gmock.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include <terrace/core/math/philox.h>
#include <terrace/parallel/comm/communicator.h>
#include <terrace/parallel/comm/threads/run_ranks.h>
#include <terrace/parallel/pipeline/orders.h>
#include <terrace/parallel/train/trainer.h>
#include <terrace/tests/support/folder_test.h>
#include <terrace/tests/support/thrown_error.h>
#include <terrace/tests/support/toy_run.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(Deal, EverySequenceOfAStepIsDealtOnceHoweverManyRanksThereAre) {
  for (const std::uint64_t ranks : {1, 2, 3, 8})
    for (const std::uint64_t micro_batches : {1, 2, 5})
      for (const std::uint64_t together : {1, 3}) {
        const std::uint64_t rows = 4, step = 7;
        const auto a_step = rows * micro_batches * ranks;
        std::multiset<std::uint64_t> dealt, evaluated;
        for (std::uint64_t rank = 0; rank < ranks; ++rank) {
          // The turns of the ranks may have any order.
          const training::Deal deal{rows, micro_batches, together, ranks, rank, ranks - 1 - rank};
          for (const auto s : deal.of_steps(step)) dealt.insert(s);
          for (const auto s : deal.of_evaluation(0, micro_batches)) evaluated.insert(s);
        }
        std::multiset<std::uint64_t> expected, first;
        for (std::uint64_t i = 0; i < a_step * together; ++i) expected.insert((step - 1) * a_step + i);
        for (std::uint64_t i = 0; i < a_step; ++i) first.insert(i);
        EXPECT_EQ(expected, dealt);
        EXPECT_EQ(first, evaluated);
      }
}

TEST(Progress, ComesBackAsItWas) {
  const training::Progress progress{.skipped_steps = 3, .peak_bytes = {{1, 2, 3}}, .loss_scale = LossScale::State{1024, 17}};
  const auto back = training::parse_progress(to_text(progress));
  EXPECT_EQ(3U, back.skipped_steps);
  EXPECT_EQ(2U, back.peak_bytes[Tier::host]);
  EXPECT_EQ((LossScale::State{1024, 17}), *back.loss_scale);
  EXPECT_FALSE(training::parse_progress(to_text(training::Progress{})).loss_scale);
  for (const auto* const text : {"", "{", "[1]", R"({"skipped_steps":"x"})"}) {
    EXPECT_EQ(ErrorKind::corrupt, test::thrown_by([&] { training::parse_progress(text); }).kind()) << text;
  }
}

// Options that forget the norm do not compile: clipping would be off in silence.
template <class Options>
concept WithNorm = requires {
  Options{.read = {}, .rate = {}, .greatest_norm = 1};
};
template <class Options>
concept WithoutNorm = requires {
  Options{.read = {}, .rate = {}};
};
static_assert(WithNorm<Trainer::Options> && !WithoutNorm<Trainer::Options>);

// A rank's engine for the toy model, and a trainer whose data depends only on the sequence's number.
struct TrainedRun {
  explicit TrainedRun(toy::RunOptions options, Trainer::Options trained = plain(), Communicator* ranks = nullptr)
      : training(std::move(options), ranks) {
    if (ranks) agreement.emplace(*ranks, *training.device);
    trained.ranks = agreement ? &*agreement : nullptr;
    trained.read = [this](Split split, auto sequences, auto tokens, auto targets) {
      return read(split, sequences, tokens, targets);
    };
    trainer.emplace(*training.engine, std::move(trained));
  }
  static Trainer::Options plain() {
    return {.read = {}, .rate = [](std::uint64_t) { return 1e-2; }, .greatest_norm = 0.5};
  }
  bool read(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets) const {
    const auto seq = tokens.size() / sequences.size();
    const auto vocab = static_cast<std::uint64_t>(training.o.sizes.vocab);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto draw = [&](std::size_t at) {
        return static_cast<std::int32_t>(math::random_below(split == Split::training ? 5 : 6, sequences[i / seq], at, vocab));
      };
      tokens[i] = draw(i % seq);
      targets[i] = draw(i % seq + 1);
    }
    return readable;
  }
  void train(int steps) {
    for (int s = 0; s < steps; ++s) {
      ASSERT_TRUE(trainer->read());
      for (const auto& step : trainer->step()) losses.push_back(step.result.loss_sum);
    }
  }

  toy::Training training;
  std::optional<Agreement> agreement;
  std::optional<Trainer> trainer;
  std::vector<double> losses;
  bool readable = true;
};

class TrainerTest : public test::FolderTest {
 protected:
  [[nodiscard]] toy::RunOptions options_of(std::uint32_t ranks, std::uint32_t micro_batches) const;
  [[nodiscard]] struct Outcome outcome_on(std::uint32_t ranks, std::uint32_t micro_batches) const;
};

toy::RunOptions TrainerTest::options_of(std::uint32_t ranks, std::uint32_t micro_batches) const {
  toy::RunOptions o;
  o.shape = {{2, 16}, micro_batches};
  o.data = {.ranks = ranks, .zero = 2, .canonical = true};
  o.store = folder_ / "store";
  o.commit_at_end = false;
  o.evaluate_between = true;
  return o;
}

struct Outcome {
  std::vector<double> losses;
  std::optional<double> held_out;
  std::uint64_t hash = 0;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome TrainerTest::outcome_on(std::uint32_t ranks, std::uint32_t micro_batches) const {
  std::vector<Outcome> all(ranks);
  run_ranks(static_cast<int>(ranks), {}, [&](std::unique_ptr<Communicator> own) {
    const auto r = static_cast<std::size_t>(own->rank());
    auto o = options_of(ranks, micro_batches);
    o.store += fmt::format("-{}-of-{}", r, ranks);
    TrainedRun run(o, TrainedRun::plain(), ranks == 1 ? nullptr : own.get());
    run.train(3);
    all[r].losses = run.losses;
    all[r].held_out = run.trainer->evaluate(5);
    all[r].hash = run.training.hash();
  });
  for (const auto& one : all) EXPECT_EQ(all.front(), one);
  return all.front();
}

TEST_F(TrainerTest, RanksTrainAndEvaluateAsOne) {
  const auto one = outcome_on(1, 4);
  ASSERT_TRUE(one.held_out);
  EXPECT_EQ(one, outcome_on(2, 2));
  EXPECT_EQ(one, outcome_on(4, 1));
}

TEST_F(TrainerTest, AForgottenSettingDoesNotDropClipping) {
  auto o = options_of(1, 2);
  o.before_use = false;
  EXPECT_THAT(test::refusal_of([&] { TrainedRun run(o); }), HasSubstr("plan with PlanRequest::updates_before_use"));
  auto unclipped = TrainedRun::plain();
  unclipped.greatest_norm = 0;
  EXPECT_NO_THROW(TrainedRun(o, unclipped).train(1));
}

// The learning rate is far too large once. The next loss shows that.
TEST_F(TrainerTest, AStepThatDivergesIsNamedOrSkipped) {
  const auto huge_once = [](std::uint64_t step) { return step == 2 ? 1e30 : 1e-2; };
  auto stops = TrainedRun::plain();
  stops.rate = huge_once;
  TrainedRun run(options_of(1, 2), stops);
  run.train(2);
  ASSERT_TRUE(run.trainer->read());
  try {
    run.trainer->step();
    FAIL() << "the loss is not finite";
  } catch (const Diverged& e) {
    EXPECT_EQ(3U, e.step);
    EXPECT_FALSE(std::isfinite(e.loss));
    EXPECT_THAT(e.what(), HasSubstr("training diverged at step 3"));
  }
  EXPECT_EQ(2U, run.trainer->done());

  auto skips = stops;
  skips.non_finite = NonFinite::skip;
  auto o = options_of(1, 2);
  o.store = folder_ / "skips";
  TrainedRun skipped(o, skips);
  skipped.train(4);
  EXPECT_EQ(2U, skipped.trainer->skipped());
  EXPECT_EQ(4U, skipped.trainer->done());
}

TEST_F(TrainerTest, GoesOnBehindItsCommit) {
  auto o = options_of(1, 2);
  o.store = folder_ / "whole";
  TrainedRun whole(o);
  whole.train(4);
  o.store = folder_ / "stopped";
  {
    TrainedRun first(o);
    first.train(2);
    first.trainer->commit();
  }
  o.resume = true;
  TrainedRun second(o);
  EXPECT_EQ(2U, second.trainer->done());
  EXPECT_GT(second.trainer->committed_peak()[Tier::device], 0U);
  second.train(2);
  EXPECT_EQ((std::vector<double>{whole.losses.begin() + 2, whole.losses.end()}), second.losses);
  EXPECT_EQ(whole.training.hash(), second.training.hash());
}

TEST_F(TrainerTest, DataThatCannotBeReadEndsAnEvaluation) {
  TrainedRun run(options_of(1, 2));
  run.train(1);
  run.readable = false;
  EXPECT_FALSE(run.trainer->read());
  EXPECT_FALSE(run.trainer->evaluate(3));
}

}  // namespace
}  // namespace terrace
