// Two works beside each other: both rates, nothing left running, and an error of either ends both.
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
  Counted one, other;
  auto session = quiet();
  const auto rates = rates_beside(session, one.load("one"), other.load("other"));
  for (const auto* const list : {&rates.alone, &rates.beside, &rates.other_alone, &rates.other_beside}) {
    ASSERT_EQ(3U, list->size());
    for (const double rate : *list) EXPECT_GT(rate, 0);
  }
  EXPECT_EQ(0, one.queued);
  EXPECT_EQ(0, other.queued);
  const int ended = other.steps;
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ended, other.steps) << "it still runs";
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
    EXPECT_THROW(first ? (void)rates_beside(session, failing, other.load("other"))
                       : (void)rates_beside(session, one.load("one"), failing),
                 Error);
    const int ended = one.steps + other.steps;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(ended, one.steps + other.steps);
  }
}

}  // namespace
}  // namespace terrace::bench
