// Paths are measured in the same moments, the slow one is named, and a failing path stops the others.
#include <terrace/bench/disk/paths_run.h>

#include <gmock/gmock.h>

#include <condition_variable>
#include <mutex>
#include <thread>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;

constexpr DiskShape kSmall{.block_bytes = 64 * kKiB, .queue_depth = 4};

// Opens once, and tells how long the other path took.
class Gate {
 public:
  void open(double seconds) {
    const std::lock_guard lock(mutex_);
    seconds_ = seconds;
    opened_.notify_all();
  }
  double pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return seconds_ >= 0; });
    return seconds_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  double seconds_ = -1;
};

// The disk of a throttled path: no request ends before the other path has ended, nor sooner than that took.
class ThrottledEngine final : public IoEngine {
 public:
  ThrottledEngine(std::unique_ptr<IoEngine> inner, Gate& gate) : inner_(std::move(inner)), gate_(gate) {}
  void submit(std::span<IoRequest* const> requests) override {
    if (begin_ns_ == 0) begin_ns_ = now_ns();
    inner_->submit(requests);
  }
  std::size_t poll(std::chrono::nanoseconds wait) override {
    const double least_s = gate_.pass();
    while (static_cast<double>(now_ns() - begin_ns_) * 1e-9 < least_s)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return inner_->poll(wait);
  }
  void wake() override { inner_->wake(); }
  std::size_t in_flight() const override { return inner_->in_flight(); }
  std::string name() const override { return inner_->name(); }

 private:
  std::unique_ptr<IoEngine> inner_;
  Gate& gate_;
  std::int64_t begin_ns_ = 0;
};

class PathsRun : public testing::Test {
 protected:
  // `throttled`: the path whose requests wait for the gate; -1: none.
  DiskTargets targets(int count, int throttled = -1) {
    DiskTargets all;
    for (int i = 0; i < count; ++i) {
      DiskTarget::Settings settings{.bytes = 4 * kMiB, .least_block_bytes = kSmall.block_bytes, .engine = "threads"};
      if (i == throttled)
        settings.wrap = [this](std::unique_ptr<IoEngine> inner) {
          return std::make_unique<ThrottledEngine>(std::move(inner), gate_);
        };
      const auto folder = scratch_ / std::to_string(i);
      std::filesystem::create_directory(folder);
      all.push_back(std::make_unique<DiskTarget>(folder, settings));
      buffers_.push_back(memory_->allocate(all.back()->needed_bytes(kSmall.buffer_bytes())));
      all.back()->use({buffers_.back().data(), buffers_.back().bytes()});
    }
    return all;
  }
  static bool go_on(std::uint64_t, double) { return true; }

  ScratchFolder scratch_;
  ThreadPool pool_{2};
  std::unique_ptr<MemoryResource> memory_ = make_pinned_memory(pool_);
  std::vector<Slab> buffers_;
  Gate gate_;
};

DiskShape by_threads() {
  auto shape = kSmall;
  shape.engine = "threads";
  return shape;
}

TEST_F(PathsRun, EveryPathMovesItsFileAndTheSumIsThatOfAll) {
  const auto all = targets(3);
  const auto runs = run_together(all, go_on, [](DiskTarget& target, const auto& watch, const auto& ready) {
    return target.run(by_threads(), {.op = DiskOp::write, .watch = watch, .ready = ready});
  });
  ASSERT_EQ(3U, runs.size());
  for (const auto& run : runs) EXPECT_EQ(4 * kMiB, run.bytes);
  const auto sum = sum_of(runs);
  EXPECT_TRUE(sum.whole);
  EXPECT_EQ(12 * kMiB, sum.bytes);
  EXPECT_EQ(192U, sum.axis.latencies().count());
  for (const auto& run : runs) EXPECT_GE(sum.seconds, run.seconds);
  for (const auto& target : all) EXPECT_TRUE(target->verify(go_on).whole);
}

// It moves a sixteenth of the bytes in at least the same time, so that its rate is at most a sixteenth.
TEST_F(PathsRun, AThrottledPathIsNamed) {
  const auto all = targets(2, 1);
  const auto runs = run_together(all, go_on, [&](DiskTarget& target, const auto& watch, const auto& ready) {
    const bool fast = &target == all[0].get();
    const std::uint64_t blocks = fast ? 64 : 4;
    auto run = target.run(by_threads(), {.op = DiskOp::write, .watch = watch, .blocks = blocks, .ready = ready});
    if (fast) gate_.open(run.seconds);
    return run;
  });
  std::vector<PathRates> rates;
  for (std::size_t i = 0; i < 2; ++i)
    rates.push_back({all[i]->path().string(), {1e-9 * static_cast<double>(runs[i].bytes) / runs[i].seconds}});
  const auto slow = slow_paths(rates);
  ASSERT_EQ(1U, slow.size());
  EXPECT_EQ(all[1]->path().string(), slow[0].path);
  EXPECT_EQ(all[0]->path().string(), slow[0].fastest);
  EXPECT_LE(slow[0].gb_per_s, slow[0].fastest_gb_per_s / 16);
}

TEST_F(PathsRun, APathThatFailsEndsAll) {
  const auto all = targets(3);
  for (const bool before : {true, false}) {
    try {
      run_together(all, go_on, [&](DiskTarget& target, const auto& watch, const auto& ready) {
        if (&target != all[1].get())
          return target.run(by_threads(), {.op = DiskOp::write, .watch = watch, .seconds = 600, .ready = ready});
        if (!before) ready();
        throw Error("this disk is gone");
      });
      FAIL() << "the error is lost";
    } catch (const Error& error) {
      EXPECT_STREQ("this disk is gone", error.what());
    }
  }
}

TEST(SlowPaths, ASmallOrUnsteadyDifferenceIsNone) {
  EXPECT_TRUE(slow_paths({{"a", {3, 3.1, 3.2}}, {"b", {2.6, 2.7, 2.6}}}).empty()) << "87 % of the fastest";
  EXPECT_TRUE(slow_paths({{"a", {1, 3, 3}}, {"b", {1, 1.1, 1.2}}}).empty()) << "the fastest was once as slow";
  const auto slow = slow_paths({{"b", {1, 1.1, 1.2}}, {"a", {3, 3, 3}}, {"c", {2.9, 3, 2.9}}, {"d", {0.5, 0.5, 0.5}}});
  ASSERT_EQ(2U, slow.size());
  EXPECT_EQ("b", slow[0].path);
  EXPECT_EQ("d", slow[1].path);
  EXPECT_THAT(describe("read", slow[0]), HasSubstr("read: b is slow: 1.1 GB/s, 37 % of a's 3"));
  EXPECT_TRUE(slow_paths({{"a", {1}}}).empty());
}

}  // namespace
}  // namespace terrace::bench
