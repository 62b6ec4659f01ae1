// A folder's block device is found through a partition, and what is said about split requests is what can be done.
#include <terrace/bench/disk/block_device.h>

#include <gmock/gmock.h>
#include <sys/sysmacros.h>

#include <terrace/core/base/units.h>
#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::bench {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class BlockDeviceTest : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) {
    fs::create_directories((scratch_ / file).parent_path());
    scratch_.write(file, text + "\n");
  }
  void number(const std::string& of, const std::string& folder) {
    fs::create_directories(scratch_ / "sys/dev/block");
    fs::create_directory_symlink(scratch_ / folder, scratch_ / ("sys/dev/block/" + of));
  }
  ScratchFolder scratch_;
};

TEST_F(BlockDeviceTest, APartitionHasTheQueueOfItsDisk) {
  put("sys/devices/nvme0n1/queue/max_sectors_kb", "1280");
  put("sys/devices/nvme0n1/queue/max_hw_sectors_kb", "4096");
  put("sys/devices/nvme0n1/device/device/numa_node", "1");
  put("sys/devices/nvme0n1/nvme0n1p2/partition", "2");
  number("259:2", "sys/devices/nvme0n1/nvme0n1p2");
  const auto device = block_device_of(makedev(259, 2), scratch_.path());
  EXPECT_EQ("nvme0n1", device.name);
  EXPECT_EQ(1280 * kKiB, device.most_request_bytes);
  EXPECT_EQ(4096 * kKiB, device.possible_request_bytes);
  EXPECT_EQ(1, device.numa_node);
  EXPECT_EQ(1U, device.parts_of(1280 * kKiB));
  EXPECT_EQ(7U, device.parts_of(8 * kMiB));
}

TEST_F(BlockDeviceTest, WhatTheKernelDoesNotTellIsUnknown) {
  EXPECT_FALSE(block_device_of(makedev(0, 40), scratch_.path()).known());
  put("sys/devices/virtual/md0/queue/max_sectors_kb", "nonsense");
  number("9:0", "sys/devices/virtual/md0");
  const auto device = block_device_of(makedev(9, 0), scratch_.path());
  EXPECT_EQ("md0", device.name);
  EXPECT_EQ(0U, device.parts_of(8 * kMiB));
  EXPECT_EQ(-1, device.numa_node);
  EXPECT_EQ("", split_advice(device, 8 * kMiB));
}

TEST(SplitAdvice, NamesTheFileOnlyIfItsNumberCanBeRaised) {
  const BlockDevice low{.name = "vda", .most_request_bytes = 1280 * kKiB, .possible_request_bytes = 4 * kMiB};
  EXPECT_EQ("", split_advice(low, kMiB));
  EXPECT_THAT(split_advice(low, 8 * kMiB), AllOf(HasSubstr("8.00 MiB reaches vda as 7 requests of at most 1.25 MiB"),
                                                 HasSubstr("echo 4096 > /sys/block/vda/queue/max_sectors_kb")));
  EXPECT_THAT(split_advice(low, 2 * kMiB), HasSubstr("echo 2048 > "));
  const BlockDevice full{.name = "vda", .most_request_bytes = 128 * kKiB, .possible_request_bytes = 128 * kKiB};
  EXPECT_THAT(split_advice(full, kMiB),
              AllOf(HasSubstr("as 8 requests"), HasSubstr("takes no more: --block-size 128KiB with a queue 8 times as deep"),
                    Not(HasSubstr("echo"))));
}

}  // namespace
}  // namespace terrace::bench
