// A drive that begins to fail during a run, on a real block device: the run ends with one error that names the chunk, the file
// and the offset. When the drive is back in the state of the last commit, --resume auto gives the same result as an undisturbed
// run.
//
// A loop device fails reads beyond the end of its file, so the test truncates that file while the run waits for the test.
#include <unistd.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = 1024 * 1024;

TEST_F(Cli, ADriveThatFailsEndsTheRunWhichGoesOnWhenItIsBack) {
  fs::create_directory(at("disk"));
  PrivateMount disk(at("disk"));
  if (!disk.ext4(at("image"), 64 * kMiB)) GTEST_SKIP() << "no file system in a file can be mounted here: " << disk.why();
  const Words wanted{"--steps", "12", "--ckpt-interval", "1", "--device-memory", "1MiB", "--host-memory", "1MiB"};
  const auto with = [&](const Words& more) { return wanted + more; };
  const auto undisturbed = succeeded(train(with({"--nvme-path", ".", "--out-dir", "whole"})));

  const Words on_the_drive{"--nvme-path", "disk", "--out-dir", "run", "--resume", "auto"};
  auto json = with(on_the_drive);
  json.emplace_back("--json");
  {
    Child child(launch(tiny("train", json)));
    child.read_lines(3);
    ::sync();
    fs::copy_file(at("image"), at("backup"));  // the drive's content at this moment, as after a power loss
    fs::resize_file(at("image"), 8 * 1024);
    const auto failed = child.wait();
    // Blocks that the run wrote in between are present, with zeros around them; their checksums reveal that.
    if (failed.exit == 5) {
      expect_refusal(failed, 5, {"chunk", "is not what was written", "disk tier, file disk/terrace-", "offset", "checksum"});
    } else {
      expect_refusal(failed, 1,
                     {"chunk", "disk tier, file disk/terrace-", "offset", "Input/output error (errno 5)", "--resume auto"});
    }
  }
  ASSERT_TRUE(disk.detach()) << disk.why();
  ASSERT_TRUE(disk.mount_image(at("backup"))) << disk.why();
  const auto finished = succeeded(train(with(on_the_drive)));
  EXPECT_NE(std::string::npos, finished.out.find("resumed after step")) << finished.described;
  EXPECT_EQ(weights_of(undisturbed), weights_of(finished));
  EXPECT_EQ(steps("whole"), steps("run"));
}

}  // namespace
}  // namespace terrace::test
