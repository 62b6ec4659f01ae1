// Whatever fault a disk has, a worker ends with nothing in flight and reports the fault; a stop ends it early.
#include <terrace/bench/disk/disk_worker.h>

#include <gmock/gmock.h>

#include <cstdlib>
#include <memory>

#include <terrace/core/base/error.h>
#include <terrace/core/base/trace.h>
#include <terrace/tests/doubles/simulated_disk.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;
using What = SimulatedFault::What;

constexpr std::uint64_t kBlockBytes = 64 * kKiB, kBlocks = 40, kSeed = 9;
constexpr std::uint32_t kDepth = 5;

// Requests a stop after a given number of submitted requests.
class StoppingEngine final : public IoEngine {
 public:
  StoppingEngine(std::unique_ptr<IoEngine> inner, std::atomic<bool>& stop, std::size_t after)
      : inner_(std::move(inner)), stop_(stop), left_(after) {}
  void submit(std::span<IoRequest* const> requests) override {
    inner_->submit(requests);
    left_ -= std::min(left_, requests.size());
    if (left_ == 0) stop_ = true;
  }
  std::size_t poll(std::chrono::nanoseconds wait) override { return inner_->poll(wait); }
  void wake() override { inner_->wake(); }
  std::size_t in_flight() const override { return inner_->in_flight(); }
  std::string name() const override { return inner_->name(); }

 private:
  std::unique_ptr<IoEngine> inner_;
  std::atomic<bool>& stop_;
  std::size_t left_;
};

class DiskWorkerTest : public testing::Test {
 protected:
  DiskWorkerTest() : buffers_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes())), &std::free) {
    for (std::uint64_t at = 0; at < bytes(); at += slot_bytes(kBlockBytes))
      pattern_.fill({buffers_.get() + at, slot_bytes(kBlockBytes)}, 0);
    run(DiskOp::write, {});
  }
  static std::uint64_t bytes() { return kDepth * slot_bytes(kBlockBytes); }
  [[nodiscard]] DiskPart part(DiskOp op, DiskCheck check) {
    return {.op = op,
            .check = check,
            .block_bytes = kBlockBytes,
            .blocks = kBlocks,
            .turns = turns_,
            .for_ns = for_ns_,
            .queue_depth = kDepth,
            .generation = ++generation_,
            .generations = generations_,
            .seed = kSeed};
  }
  std::uint64_t run(DiskOp op, std::vector<SimulatedFault> faults, std::size_t stop_after = SIZE_MAX) {
    stop_ = false;
    StoppingEngine engine(make_simulated_engine(disk_, kSeed, std::move(faults)), stop_, stop_after);
    DiskWorker worker(engine, pattern_, part(op, DiskCheck::every_byte), {buffers_.get(), bytes()});
    try {
      worker.run(stop_, moved_bytes_, now_ns());
    } catch (...) {
      EXPECT_EQ(0U, engine.in_flight());
      throw;
    }
    EXPECT_EQ(0U, engine.in_flight());
    EXPECT_EQ(worker.ended_blocks(), worker.axis().latencies().count());
    return worker.ended_blocks();
  }
  void expect_error(DiskOp op, SimulatedFault fault, ErrorKind kind, const std::string& said) {
    EXPECT_THAT(test::error_of(kind, [&] { run(op, {fault}); }), HasSubstr(said));
  }

  Pattern pattern_{kSeed};
  std::vector<std::uint32_t> generations_ = std::vector<std::uint32_t>(kBlocks * kBlockBytes / kPageBytes);
  std::uint32_t generation_ = 0;
  std::uint64_t turns_ = 0;
  std::int64_t for_ns_ = 0;
  std::shared_ptr<SimulatedDisk> disk_ = make_simulated_disk(1, kBlocks* kBlockBytes);
  std::unique_ptr<std::byte, decltype(&std::free)> buffers_;
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> moved_bytes_{0};
};

TEST_F(DiskWorkerTest, ShortTransfersGoOnAndNothingIsLost) {
  const SimulatedFault fault{.at_request = 7, .what = What::short_transfer};
  EXPECT_EQ(kBlocks, run(DiskOp::write, {fault}));
  EXPECT_EQ(kBlocks, run(DiskOp::read, {fault}));
  EXPECT_EQ(3 * kBlocks * kBlockBytes, moved_bytes_.load());
}

TEST_F(DiskWorkerTest, AnErrorOfTheDiskIsNamedWithItsPlace) {
  expect_error(DiskOp::read, {.at_request = 7, .what = What::error, .error_number = EIO}, ErrorKind::failed,
               "Input/output error");
  expect_error(DiskOp::write, {.at_request = 7, .what = What::error, .error_number = ENOSPC}, ErrorKind::failed,
               "could not be written");
}

TEST_F(DiskWorkerTest, AFlippedBitIsFound) {
  expect_error(DiskOp::randread, {.at_request = 11, .what = What::flip_bit}, ErrorKind::corrupt,
               "the data read differ from the data written");
}

TEST_F(DiskWorkerTest, AStaleBlockIsFound) {
  run(DiskOp::write, {});
  expect_error(DiskOp::read, {.at_request = 11, .what = What::stale}, ErrorKind::corrupt,
               "the data read differ from the data written");
}

TEST_F(DiskWorkerTest, AMisdirectedWriteIsFoundByTheNextRead) {
  run(DiskOp::write, {{.at_request = 11, .what = What::misdirected}});
  expect_error(DiskOp::read, {.at_request = 1'000'000}, ErrorKind::corrupt, "the data read differ from the data written");
}

TEST_F(DiskWorkerTest, MoreTurnsThanBlocksStartOver) {
  turns_ = 3 * kBlocks + 7;
  for (const auto op : {DiskOp::read, DiskOp::write, DiskOp::randread, DiskOp::mixed}) EXPECT_EQ(turns_, run(op, {}));
  turns_ = 5;
  EXPECT_EQ(5U, run(DiskOp::write, {})) << "fewer than the part has";
  turns_ = 0;
  EXPECT_EQ(kBlocks, run(DiskOp::read, {})) << "it is known which blocks were written";
}

TEST_F(DiskWorkerTest, ATimeEndsAPassWithEveryRequestEnded) {
  for_ns_ = 20'000'000;
  for (const auto op : {DiskOp::read, DiskOp::write, DiskOp::mixed}) EXPECT_GE(run(op, {}), kDepth);
  for_ns_ = 0;
  EXPECT_EQ(kBlocks, run(DiskOp::read, {}));
}

TEST_F(DiskWorkerTest, AStopEndsItEarlyWithNothingInFlight) {
  const auto ended = run(DiskOp::randread, {}, 3 * kDepth);
  EXPECT_GE(ended, 3 * kDepth);
  EXPECT_LT(ended, kBlocks);
  // It is still known which blocks were written.
  EXPECT_LT(run(DiskOp::mixed, {}, 3 * kDepth), kBlocks);
  EXPECT_EQ(kBlocks, run(DiskOp::read, {}));
}

}  // namespace
}  // namespace terrace::bench
