#include <terrace/core/device/thread_pool.h>

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include <terrace/core/machine/cores.h>

namespace terrace {
namespace {

class Pools : public testing::TestWithParam<int> {
 protected:
  ThreadPool pool_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Threads, Pools, testing::Values(1, 2, 4));

}  // namespace

TEST_P(Pools, CallEachIndexOnce) {
  EXPECT_EQ(pool_.threads(), GetParam());
  for (const std::int64_t count : {-1, 0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> calls(static_cast<std::size_t>(count < 0 ? 0 : count));
    pool_.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
    for (const auto& n : calls) ASSERT_EQ(n, 1) << count;
  }
}

// With one core: tasks run there, and afterwards the caller may run on the same cores as before.
TEST(PoolOnCores, ItsThreadsStayThereAndItsCallerWhileItTakesPart) {
  const auto before = machine::allowed_cores();
  const std::vector<int> one{before.back()};
  EXPECT_EQ(ThreadPool(0, one).threads(), 1);
  ThreadPool pool(3, one);
  EXPECT_EQ(pool.threads(), 3);
  for (int round = 0; round < 20; ++round) {
    std::vector<int> ran(64, -1);
    pool.parallel_for(64, [&](std::int64_t i) { ran[static_cast<std::size_t>(i)] = sched_getcpu(); });
    for (const int core : ran) ASSERT_EQ(core, one.front());
    ASSERT_EQ(machine::allowed_cores(), before);
  }
}

TEST_P(Pools, NeverUseMoreThreads) {
  std::mutex mutex;
  std::set<std::thread::id> ids;
  std::atomic<int> inside{0}, most{0};
  for (int round = 0; round < 20; ++round) {
    pool_.parallel_for(64, [&](std::int64_t) {
      const int now = ++inside;
      for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      {
        const std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
      }
      std::this_thread::yield();
      --inside;
    });
  }
  EXPECT_LE(most, GetParam());
  EXPECT_GE(ids.size(), 1U);
}

// Each of the two tasks waits until the other one runs, too.
TEST(PoolOfOne, DoesNotLimitAnotherPool) {
  using namespace std::chrono_literals;
  const ThreadPool one(1);
  ThreadPool two(2);
  std::atomic<int> inside{0};
  std::atomic<bool> met{false};
  for (const auto end = std::chrono::steady_clock::now() + 60s; !met && std::chrono::steady_clock::now() < end;)
    two.parallel_for(2, [&](std::int64_t) {
      ++inside;
      for (int spin = 0; spin < 1000 && !met; ++spin) {
        if (inside > 1) met = true;
        std::this_thread::sleep_for(100us);
      }
      --inside;
    });
  EXPECT_TRUE(met) << "one thread did both tasks";
}

TEST_P(Pools, NestWithoutDeadlock) {
  std::atomic<int> calls{0};
  pool_.parallel_for(8, [&](std::int64_t) {
    pool_.parallel_for(8, [&](std::int64_t) { pool_.parallel_for(4, [&](std::int64_t) { ++calls; }); });
  });
  EXPECT_EQ(calls, 8 * 8 * 4);
}

// While a thread inside an outer task waits for a nested loop, it must not start another outer task: scratch is thread-local.
TEST_P(Pools, DoNotReenterAnOuterTask) {
  thread_local int depth = 0;
  std::atomic<int> reentered{0};
  pool_.parallel_for(64, [&](std::int64_t) {
    if (++depth > 1) ++reentered;
    pool_.parallel_for(16, [&](std::int64_t) { std::this_thread::yield(); });
    --depth;
  });
  EXPECT_EQ(reentered, 0);
}

TEST_P(Pools, ServeSeveralCallersAtOnce) {
  std::atomic<int> calls{0};
  {
    std::vector<std::jthread> callers;
    for (int c = 0; c < 3; ++c) {
      callers.emplace_back([&] {
        for (int round = 0; round < 50; ++round) pool_.parallel_for(20, [&](std::int64_t) { ++calls; });
      });
    }
  }
  EXPECT_EQ(calls, 3 * 50 * 20);
}

TEST_P(Pools, RethrowAfterEveryTaskHasEnded) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> inside{0};
    try {
      pool_.parallel_for(100, [&](std::int64_t i) {
        ++inside;
        std::this_thread::yield();
        --inside;
        if (i == 37) throw std::runtime_error("task 37");
      });
      FAIL();
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "task 37");
      EXPECT_EQ(inside, 0);
    }
  }
  std::atomic<int> calls{0};  // the pool remains usable
  pool_.parallel_for(10, [&](std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 10);
}

TEST_P(Pools, RethrowThroughANestedLoop) {
  EXPECT_THROW(pool_.parallel_for(4,
                                  [&](std::int64_t) {
                                    pool_.parallel_for(4, [](std::int64_t i) {
                                      if (i == 2) throw std::out_of_range("inner");
                                    });
                                  }),
               std::out_of_range);
}

TEST_P(Pools, MakeResultsVisibleToTheCaller) {
  std::vector<int> out(1000);  // plain ints: the pool orders the accesses
  pool_.parallel_for(1000, [&](std::int64_t i) { out[static_cast<std::size_t>(i)] = static_cast<int>(i); });
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(out[static_cast<std::size_t>(i)], i);
}

TEST(ThreadPool, ZeroMeansAllCores) { EXPECT_GE(ThreadPool(0).threads(), 1); }

}  // namespace terrace
