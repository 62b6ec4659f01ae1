#include <terrace/core/device/memory_resource.h>

#include <gmock/gmock.h>

#include <atomic>
#include <thread>
#include <vector>

#include <terrace/core/base/error.h>
#include <terrace/core/base/units.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace {
namespace {

class MemoryAdaptors : public testing::Test {
 protected:
  ThreadPool pool_{2};
  std::unique_ptr<MemoryResource> pinned_ = make_pinned_memory(pool_);
  std::unique_ptr<StatisticsMemory> counted_ = make_statistics_memory(*pinned_);
};

}  // namespace

TEST_F(MemoryAdaptors, StatisticsFollowEverySlab) {
  Slab a = counted_->allocate(1);
  EXPECT_EQ(counted_->statistics().now_bytes, kPageBytes);
  {
    const Slab b = counted_->allocate(3 * kPageBytes);
    EXPECT_EQ(counted_->statistics().now_bytes, 4 * kPageBytes);
  }
  a.reset();
  a.reset();
  const auto end = counted_->statistics();
  EXPECT_EQ(end.now_bytes, 0U);
  EXPECT_EQ(end.peak_bytes, 4 * kPageBytes);
  EXPECT_EQ(end.allocations, 2U);
}

TEST_F(MemoryAdaptors, SlabsMove) {
  Slab a = counted_->allocate(kPageBytes);
  std::byte* const data = a.data();
  Slab b = std::move(a);
  EXPECT_EQ(b.data(), data);
  b = counted_->allocate(2 * kPageBytes);  // frees the previous slab
  EXPECT_EQ(counted_->statistics().now_bytes, 2 * kPageBytes);
  Slab& same = b;
  b = std::move(same);
  EXPECT_EQ(b.bytes(), 2 * kPageBytes);
}

TEST_F(MemoryAdaptors, LimitIsExact) {
  const auto limited = make_limited_memory(*counted_, 4 * kPageBytes);
  Slab a = limited->allocate(3 * kPageBytes);
  const Slab b = limited->allocate(1);
  EXPECT_THAT(test::error_of(ErrorKind::failed, [&] { (void)limited->allocate(1); }), testing::HasSubstr("16384"));
  EXPECT_EQ(counted_->statistics().now_bytes, 4 * kPageBytes);
  a.reset();
  (void)limited->allocate(3 * kPageBytes);
  EXPECT_THROW((void)limited->allocate(~std::size_t{0}), Error);
}

TEST_F(MemoryAdaptors, LimitCountsAnEmptySlabAsThePageThatItIs) {
  const auto limited = make_limited_memory(*counted_, kPageBytes);
  { const Slab empty = limited->allocate(0); }
  const Slab a = limited->allocate(0);
  EXPECT_THROW((void)limited->allocate(0), Error);
}

TEST_F(MemoryAdaptors, LimitForgetsAnAllocationThatFailed) {
  const auto faulty = make_faulty_memory(*counted_, 2);
  const auto limited = make_limited_memory(*faulty, 2 * kPageBytes);
  const Slab a = limited->allocate(kPageBytes);
  EXPECT_THROW((void)limited->allocate(kPageBytes), Error);
  const Slab b = limited->allocate(kPageBytes);
  EXPECT_EQ(counted_->statistics().now_bytes, 2 * kPageBytes);
}

TEST_F(MemoryAdaptors, LimitHoldsUnderThreads) {
  const auto limited = make_limited_memory(*counted_, 5 * kPageBytes);
  std::atomic<int> refused{0};
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 200; ++i) {
          try {
            const Slab slab = limited->allocate(2 * kPageBytes);
          } catch (const Error&) {
            ++refused;
          }
        }
      });
    }
  }
  EXPECT_LE(counted_->statistics().peak_bytes, 5 * kPageBytes);
  EXPECT_EQ(counted_->statistics().allocations + static_cast<std::uint64_t>(refused), 800U);
  EXPECT_EQ(counted_->statistics().now_bytes, 0U);
}

TEST_F(MemoryAdaptors, FaultComesOnceAtItsAllocation) {
  const auto faulty = make_faulty_memory(*counted_, 3);
  const Slab a = faulty->allocate(1), b = faulty->allocate(1);
  EXPECT_THROW((void)faulty->allocate(1), Error);
  const Slab c = faulty->allocate(1);
  EXPECT_NE(c.data(), nullptr);
  EXPECT_EQ(counted_->statistics().allocations, 3U);
}

}  // namespace terrace
