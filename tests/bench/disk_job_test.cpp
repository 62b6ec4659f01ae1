// Every block is moved exactly once, whatever the shape; the content of the file is then known to the byte; and a byte that
// another program changed is found, by an error that ends the pass with nothing in flight.
#include <terrace/bench/disk/disk_job.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include <terrace/core/base/error.h>
#include <terrace/core/device/memory_resource.h>
#include <terrace/core/device/thread_pool.h>
#include <terrace/tests/examples/scratch_folder.h>
#include <terrace/tests/support/thrown_error.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t kFileBytes = 3 * kMiB;
constexpr std::uint64_t kSeed = 5;

class DiskJobTest : public testing::TestWithParam<const char*> {
 protected:
  DiskJobTest()
      : memory_(make_pinned_memory(pool_)), file_(scratch_.path(), kFileBytes), content_(kSeed, kFileBytes, kPageBytes) {
    std::string why;
    if (std::string(GetParam()) == "uring" && !make_uring_engine({}, why)) why_not_ = why;
  }
  void SetUp() override {
    if (!why_not_.empty()) GTEST_SKIP() << "io_uring is not permitted here: " << why_not_;
  }
  DiskRun pass(DiskOp op, DiskCheck check, const DiskShape& shape) { return pass({.op = op, .check = check}, shape); }
  DiskRun pass(const DiskPass& what, DiskShape shape) {
    shape.engine = GetParam();
    const auto slab = memory_->allocate(shape.buffer_bytes());
    DiskJob job(file_, content_, shape, {slab.data(), slab.bytes()});
    auto run = job.run(what);
    EXPECT_EQ(GetParam(), job.engine_name());
    return run;
  }
  // Changes one byte without the benchmark's knowledge; writes a whole page, because the descriptor may use direct I/O.
  void flip(std::uint64_t at) const {
    const auto page = at / kPageBytes * kPageBytes;
    const auto slab = memory_->allocate(kPageBytes);
    ASSERT_EQ(static_cast<ssize_t>(kPageBytes), ::pread(file_.descriptor(), slab.data(), kPageBytes, static_cast<off_t>(page)));
    slab.data()[at - page] ^= std::byte{0x10};
    ASSERT_EQ(static_cast<ssize_t>(kPageBytes),
              ::pwrite(file_.descriptor(), slab.data(), kPageBytes, static_cast<off_t>(page)));
  }

  ScratchFolder scratch_;
  ThreadPool pool_{2};
  std::unique_ptr<MemoryResource> memory_;
  DiskFile file_;
  DiskContent content_;
  std::string why_not_;
};

const DiskShape kWhole{.block_bytes = 256 * kKiB, .queue_depth = 4};

TEST_P(DiskJobTest, EveryShapeMovesEveryBlockOnce) {
  for (const DiskShape& shape : {DiskShape{.block_bytes = kMiB, .queue_depth = 8},
                                 {.block_bytes = 4 * kKiB, .queue_depth = 32},
                                 {.block_bytes = 12 * kKiB, .queue_depth = 3, .threads = 2},
                                 {.block_bytes = 256 * kKiB, .queue_depth = 1, .threads = 3}}) {
    SCOPED_TRACE(testing::Message() << shape.block_bytes << " bytes, depth " << shape.queue_depth << ", threads "
                                    << shape.threads);
    for (const auto op : {DiskOp::write, DiskOp::read, DiskOp::randread, DiskOp::mixed}) {
      const auto before = content_.generations;
      const auto run = pass(op, DiskCheck::every_byte, shape);
      EXPECT_TRUE(run.whole);
      EXPECT_EQ(kFileBytes / shape.block_bytes * shape.block_bytes, run.bytes);
      EXPECT_EQ(run.blocks, run.axis.latencies().count());
      EXPECT_GT(run.seconds, 0);
      // Written blocks have the new generation, all others the old one.
      const auto pages = shape.block_bytes / kPageBytes;
      for (std::uint64_t p = 0; p < run.bytes / kPageBytes; ++p) {
        const bool written = op == DiskOp::write || (op == DiskOp::mixed && p / pages % 2 == 1);
        ASSERT_EQ(written ? content_.generation : before[p], content_.generations[p]) << "page " << p;
      }
    }
    pass(DiskOp::write, DiskCheck::one_stamp, kWhole);
    EXPECT_TRUE(pass(DiskOp::read, DiskCheck::every_byte, kWhole).whole);
  }
}

TEST_P(DiskJobTest, AFlippedByteIsFoundByTheWholeCheck) {
  pass(DiskOp::write, DiskCheck::one_stamp, kWhole);
  flip(2 * kMiB + 12'345);
  EXPECT_THAT(test::error_of(ErrorKind::corrupt, [&] { pass(DiskOp::read, DiskCheck::every_byte, kWhole); }),
              HasSubstr("byte 57 of page 515 is"));
}

TEST_P(DiskJobTest, ALostWriteIsFoundWhileTheClockRuns) {
  pass(DiskOp::write, DiskCheck::one_stamp, kWhole);
  for (auto& generation : content_.generations) ++generation;  // as if a later write had never reached the disk
  EXPECT_THROW(pass(DiskOp::randread, DiskCheck::one_stamp, kWhole), Error);
}

TEST_P(DiskJobTest, APassCanGoOverTheFileSeveralTimesOrForATime) {
  pass(DiskOp::write, DiskCheck::one_stamp, kWhole);
  for (const std::uint32_t threads : {1U, 3U}) {
    auto shape = kWhole;
    shape.threads = threads;
    const auto many = pass({.op = DiskOp::write, .blocks = 31}, shape);
    EXPECT_TRUE(many.whole);
    EXPECT_EQ(31U, many.blocks);
    const auto timed = pass({.op = DiskOp::mixed, .seconds = 0.05}, shape);
    EXPECT_TRUE(timed.whole);
    EXPECT_GE(timed.seconds, 0.05);
    EXPECT_EQ(timed.blocks, timed.axis.latencies().count());
    EXPECT_TRUE(pass(DiskOp::read, DiskCheck::every_byte, kWhole).whole);
  }
  EXPECT_FALSE(pass({.op = DiskOp::read, .watch = [](std::uint64_t, double) { return false; }, .seconds = 600}, kWhole).whole);
}

INSTANTIATE_TEST_SUITE_P(Engines, DiskJobTest, testing::Values("uring", "threads"),
                         [](const auto& of) { return std::string(of.param); });

TEST(DiskFile, HasNoNameAndIsNobodyElses) {
  const ScratchFolder scratch;
  const DiskFile file(scratch.path(), kMiB);
  struct stat info {};
  ASSERT_EQ(0, ::fstat(file.descriptor(), &info));
  EXPECT_EQ(0600U, info.st_mode & 07777U);
  EXPECT_EQ(0U, info.st_nlink);
  EXPECT_EQ(static_cast<off_t>(kMiB), info.st_size);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(DiskFile, RefusesWhatIsNoDirectory) {
  const ScratchFolder scratch;
  const auto file = scratch.write("precious", "data");
  for (const auto& path : {file, scratch / "nothing", std::filesystem::path("/dev/null")}) {
    EXPECT_THAT(test::refusal_of([&] { demand_directory(path); }), HasSubstr(path.string())) << path;
  }
  EXPECT_EQ("data", scratch.read("precious"));
}

TEST(DiskFile, MoreThanTheDiskHoldsDoesNotFit) {
  const ScratchFolder scratch;
  EXPECT_THAT(test::error_of(ErrorKind::does_not_fit, [&] { const DiskFile file(scratch.path(), 1ULL << 60); }),
              HasSubstr("not enough space"));
}

}  // namespace
}  // namespace terrace::bench
