#include <gtest/gtest.h>
#include <sys/stat.h>

#include <terrace/examples/terrace/base/disk_folders.h>

namespace terrace::cli {
namespace {

TEST(DiskFolders, ALargerDiskIsNamedOnlyToFoldersOfTheRootDisk) {
  const std::vector<MountedDisk> disks{{"/", 1, 100}, {"/boot", 2, 10}, {"/mnt/nvme", 3, 2000}, {"/data", 4, 1000}};
  EXPECT_EQ("/mnt/nvme", larger_than_root(1, disks).value().folder);
  for (const std::uint64_t other : {2U, 3U, 4U, 5U}) EXPECT_FALSE(larger_than_root(other, disks)) << other;
  EXPECT_FALSE(larger_than_root(1, std::span(disks).first(2))) << "the others are smaller";
  EXPECT_FALSE(larger_than_root(1, std::span(disks).subspan(1))) << "as in a container, whose root is no disk";
  EXPECT_FALSE(larger_than_root(1, {}));
}

TEST(DiskFolders, OnlyDisksThatCanBeWrittenAreDisksAndEachIsOne) {
  EXPECT_TRUE(mounted_disks("proc /proc proc rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/loop3 / squashfs rw 0 0\n").empty());
  EXPECT_TRUE(mounted_disks("/dev/sda1 /no/such/folder ext4 rw 0 0\n/dev/sda1 /etc/hostname ext4 rw 0 0\ntruncated").empty());
  const auto disks = mounted_disks("/dev/sda1 / ext4 rw 0 0\n/dev/sda1 /. ext4 rw 0 0\n");
  ASSERT_EQ(1U, disks.size());
  struct stat root {};
  ASSERT_EQ(0, ::stat("/", &root));
  EXPECT_EQ(root.st_dev, disks[0].device);
  EXPECT_GT(disks[0].bytes, 0U);
}

}  // namespace
}  // namespace terrace::cli
