// A sweep tries only useful settings and recommends the cheapest of the fastest ones; the printed job is the same job.
#include <gmock/gmock.h>

#include <terrace/bench/disk/disk_config.h>
#include <terrace/bench/disk/sweep.h>

namespace terrace::bench {
namespace {

using testing::HasSubstr;

TEST(Sweep, ShapesFitTheFileAndTheMemory) {
  const auto shapes = sweep_shapes({.block_bytes = 8 * kMiB, .engine = "threads"}, kGiB, 2);
  EXPECT_GT(shapes.size(), 16U);
  for (const auto& s : shapes) {
    EXPECT_LE(s.buffer_bytes(), 512 * kMiB);
    EXPECT_LE(2 * s.block_bytes * s.queue_depth * s.threads, kGiB);
    EXPECT_EQ(0U, kSweepBlockBytes % s.block_bytes);
    EXPECT_LE(s.threads, 2U);
    EXPECT_EQ("threads", s.engine);
  }
}

TEST(Sweep, OfNothingTheBaseRemains) {
  const auto shapes = sweep_shapes({.block_bytes = 4 * kKiB, .queue_depth = 2}, 4 * kKiB, 1);
  ASSERT_EQ(1U, shapes.size());
  EXPECT_EQ(4 * kKiB, shapes.front().block_bytes);
}

TEST(Sweep, TheCheapestOfTheFastestIsBest) {
  const std::vector<Swept> swept{{{.threads = 1}, 2.0, 0.001},
                                 {{.threads = 2}, 3.00, 0.009},
                                 {{.threads = 3}, 2.97, 0.004},
                                 {{.threads = 4}, 2.90, 0.002}};
  EXPECT_EQ(3U, best_of(swept).shape.threads);
}

TEST(DiskConfig, FioGetsTheSameJob) {
  const DiskShape shape{.block_bytes = 8 * kMiB, .queue_depth = 32, .threads = 2};
  EXPECT_EQ(
      "fio --name=terrace --directory=/data --unlink=1 --size=536870912 --rw=rw --rwmixread=50 --bs=8388608 --iodepth=32 "
      "--numjobs=2 --group_reporting --direct=1 --ioengine=io_uring --fixedbufs=1 --registerfiles=1",
      fio_line(DiskOp::mixed, shape, kGiB, "/data"));
  EXPECT_THAT(fio_line(DiskOp::read, shape, kGiB, "/my data/it's"), HasSubstr(R"(--directory='/my data/it'\''s')"));
}

TEST(DiskConfig, PreadsInFlightAreFiosJobs) {
  const DiskShape shape{.block_bytes = kMiB, .queue_depth = 8, .threads = 2, .engine = "threads"};
  EXPECT_THAT(fio_line(DiskOp::randread, shape, kGiB, "/data"),
              HasSubstr("--size=67108864 --rw=randread --bs=1048576 --iodepth=1 --numjobs=16"));
}

TEST(DiskConfig, OurOwnLineIsExact) {
  EXPECT_EQ("terrace bench nvme /data --op randread --size 1GiB --block-size 12KiB --queue-depth 3 --threads 1 --engine uring",
            terrace_line(DiskOp::randread, {.block_bytes = 12 * kKiB, .queue_depth = 3, .engine = "uring"}, kGiB, "/data"));
}

}  // namespace
}  // namespace terrace::bench
