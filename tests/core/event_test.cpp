#include <terrace/core/device/event.h>

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace terrace {
namespace {

std::exception_ptr error_of(const char* text) { return std::make_exception_ptr(std::runtime_error(text)); }

}  // namespace

TEST(Timeline, AnEmptyEventIsDone) {
  const Event event;
  EXPECT_TRUE(event.done());
  event.wait();
}

TEST(Timeline, ReachesPointsInOrder) {
  const auto timeline = std::make_shared<Timeline>();
  const Event first(timeline, 1), third(timeline, 3);
  EXPECT_FALSE(first.done());
  timeline->advance(2);
  EXPECT_TRUE(first.done());
  EXPECT_FALSE(third.done());
  EXPECT_EQ(timeline->now(), 2U);
  timeline->advance(3);
  third.wait();
  EXPECT_THROW(timeline->advance(1), std::logic_error);
}

TEST(Timeline, WaitBlocksUntilThePoint) {
  const auto timeline = std::make_shared<Timeline>();
  int written = 0;  // deliberately not atomic: the event orders it
  std::vector<std::jthread> waiters;
  std::atomic<int> saw{0};
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&, event = Event(timeline, 5)] {
      event.wait();
      saw += written;
    });
  }
  timeline->advance(4);
  written = 1;
  timeline->advance(5);
  waiters.clear();
  EXPECT_EQ(saw, 3);
}

TEST(Timeline, FailureReachesOnlyLaterPoints) {
  const auto timeline = std::make_shared<Timeline>();
  timeline->advance(1);
  timeline->fail(error_of("first"));
  timeline->fail(error_of("second"));
  timeline->advance(9);  // too late: the work of these points was skipped
  const Event before(timeline, 1), after(timeline, 2);
  before.wait();
  EXPECT_TRUE(before.done());
  EXPECT_THROW((void)after.done(), std::runtime_error);
  try {
    after.wait();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

TEST(Timeline, FailureWakesWhoWaits) {
  const auto timeline = std::make_shared<Timeline>();
  std::atomic<bool> threw{false};
  std::jthread waiter([&, event = Event(timeline, 1)] {
    try {
      event.wait();
    } catch (const std::runtime_error&) {
      threw = true;
    }
  });
  timeline->fail(error_of("gone"));
  waiter.join();
  EXPECT_TRUE(threw);
}

TEST(Timeline, OnReachCallsOnceInOrderOfThePoints) {
  Timeline timeline;
  std::vector<int> calls;
  timeline.on_reach(2, [&] { calls.push_back(2); });
  timeline.on_reach(1, [&] { calls.push_back(1); });
  timeline.on_reach(0, [&] { calls.push_back(0); });  // already reached: called at once
  EXPECT_EQ(calls, (std::vector<int>{0}));
  timeline.advance(1);
  EXPECT_EQ(calls, (std::vector<int>{0, 1}));
  timeline.advance(5);
  timeline.advance(6);
  EXPECT_EQ(calls, (std::vector<int>{0, 1, 2}));
}

TEST(Timeline, OnReachIsCalledByAFailure) {
  Timeline timeline;
  int calls = 0;
  timeline.on_reach(1, [&] { ++calls; });
  timeline.fail(error_of("gone"));
  EXPECT_EQ(calls, 1);
  timeline.on_reach(9, [&] { ++calls; });  // never reached
  EXPECT_EQ(calls, 2);
}

// Registered while the producer runs: each function is called exactly once, before or after its point is reached.
TEST(Timeline, OnReachLosesNothingUnderThreads) {
  for (int round = 0; round < 200; ++round) {
    Timeline timeline;
    std::atomic<int> calls{0};
    {
      std::jthread producer([&] {
        for (std::uint64_t i = 1; i <= 50; ++i) timeline.advance(i);
      });
      for (std::uint64_t i = 1; i <= 50; ++i) timeline.on_reach(i, [&] { ++calls; });
    }
    ASSERT_EQ(calls, 50) << "round " << round;
  }
}

}  // namespace terrace
