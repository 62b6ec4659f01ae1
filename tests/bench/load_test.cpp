// Works beside each other: all rates, nothing left running, and an error of one ends all.
#include <terrace/bench/link/load.h>

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include <terrace/core/base/error.h>

namespace terrace::bench {
namespace {

struct Counted {
  std::atomic<int> steps{0}, queued{0};
  Load load(const std::string& name) {
    return {.name = name,
            .amount = 1,
            .step =
                [this] {
                  ++steps;
                  queued = 1;
                  std::this_thread::sleep_for(std::chrono::milliseconds(1));
                },
            .finish = [this] { queued = 0; }};
  }
};

Session quiet() { return Session({.runs = 3, .json = true, .stopped = {}}); }

TEST(Loads, HaveRatesAloneAndBesideEachOther) {
  Counted one, other, third;
  auto session = quiet();
  const auto rates = rates_together(session, {one.load("one"), other.load("other"), third.load("third")});
  ASSERT_EQ(3U, rates.size());
  for (const auto& of : rates) {
    ASSERT_EQ(3U, of.alone.size());
    ASSERT_EQ(3U, of.together.size());
    for (const double rate : of.alone) EXPECT_GT(rate, 0);
    for (const double rate : of.together) EXPECT_GT(rate, 0);
  }
  for (const auto* const load : {&one, &other, &third}) EXPECT_EQ(0, load->queued);
  const int ended = other.steps + third.steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ended, other.steps + third.steps) << "they still run";
}

TEST(Loads, AllRunWhileTheFirstIsTimed) {
  Counted others[2];
  Counted one;
  std::atomic<bool> alone{true}, missed{false};
  auto first = one.load("one");
  first.step = [&, step = first.step] {
    if (others[0].queued == 1 && others[1].queued == 1) alone = false;
    step();
    if (!alone && (others[0].queued == 0 || others[1].queued == 0)) missed = true;
  };
  auto session = Session({.runs = 1, .json = true, .stopped = {}});
  (void)rates_together(session, {first, others[0].load("other"), others[1].load("third")});
  EXPECT_FALSE(alone) << "they never ran at once";
  EXPECT_FALSE(missed) << "one ended before the others";
}

TEST(Loads, SharesAreOfTheSameRuns) {
  EXPECT_EQ((std::vector<double>{0.5, 0.25}), shares({.alone = {10, 20}, .together = {5, 5}}));
}

TEST(Loads, AnErrorOfEitherEndsBoth) {
  for (const bool first : {true, false}) {
    Counted one, other;
    auto failing = first ? one.load("one") : other.load("other");
    failing.step = [&, step = failing.step] {
      step();
      if (one.queued == 1 && other.queued == 1) throw Error("the device is gone");  // not while it is alone
    };
    auto session = quiet();
    const auto loads = first ? std::vector{failing, other.load("other")} : std::vector{one.load("one"), failing};
    EXPECT_THROW((void)rates_together(session, loads), Error);
    const int ended = one.steps + other.steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ended, one.steps + other.steps);
  }
}

}  // namespace
}  // namespace terrace::bench
