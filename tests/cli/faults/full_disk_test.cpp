// Too little space is detected before the run begins (exit 3). A disk that fills up later ends the run with an error that says
// so (exit 1), and the last commit stays intact: with space again, --resume auto gives the same result as an undisturbed run.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/private_mount.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = 1024 * 1024;

class FullDisk : public Cli {
 protected:
  FullDisk() { fs::create_directory(at("disk")); }
  void fills_up() const;
  // Fills the remaining space.
  void fill_up(const std::string& name) const {
    std::string block(64 * 1024, 'x');
    const int fd = ::open(at(name).c_str(), O_WRONLY | O_CREAT, 0600);
    ASSERT_GE(fd, 0);
    for (std::size_t bytes = block.size(); bytes > 0; bytes /= 2) {
      while (::write(fd, block.data(), bytes) == static_cast<ssize_t>(bytes)) {
      }
    }
    ::close(fd);
  }
};

TEST_F(FullDisk, TooLittleRoomIsFoundBeforeTheRun) {
  PrivateMount disk(at("disk"));
  if (!disk.memory(kMiB)) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  expect_refusal(train({"--nvme-path", "disk"}), 3, {"disk/terrace-", "not enough space", "are needed", "are free", "free "});
  expect_refusal(train({"--out-dir", "disk/run"}), 3, {"disk/run/store/data", "not enough space"});
  EXPECT_FALSE(fs::exists(at("run/metrics.jsonl")));
  // Neither failed run leaves anything to clean up.
  EXPECT_EQ(0, train({}).exit);
  ASSERT_EQ(0, ::mount("", at("disk").c_str(), "", MS_REMOUNT, "size=64m"));
  EXPECT_EQ(0, train({"--out-dir", "disk/run"}).exit);
}

void FullDisk::fills_up() const {
  const Words wanted{"--steps", "40", "--ckpt-interval", "1"};
  const auto undisturbed = succeeded(train(wanted + Words{"--out-dir", "whole"}));

  auto resumed = wanted + Words{"--out-dir", "disk/run", "--resume", "auto"};
  // In the middle, the run waits for the test, because its output is not read.
  auto json = resumed;
  json.emplace_back("--json");
  Child child(launch(tiny("train", json)));
  child.read_lines(2);
  fill_up("disk/ballast");
  const auto full = child.wait();
  expect_refusal(full, 1, {"disk/run/", "No space left on device (errno 28)", "--resume auto"});
  expect_refusal(train(resumed), 1, {"disk/run/", "No space left on device (errno 28)", "--resume auto"});
  succeeded(terrace({"ckpt", "verify", "disk/run"}));

  fs::remove(at("disk/ballast"));
  EXPECT_EQ(weights_of(undisturbed), weights_of(train(resumed)));
  EXPECT_EQ(steps("whole"), steps("disk/run"));
}

TEST_F(FullDisk, ADiskThatFillsUpLeavesTheLastCommitWhole) {
  PrivateMount disk(at("disk"));
  if (!disk.memory(16 * kMiB)) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  fills_up();
}

TEST_F(FullDisk, ARealFileSystemThatFillsUpLeavesTheLastCommitWhole) {
  PrivateMount disk(at("disk"));
  if (!disk.ext4(at("image"), 32 * kMiB)) GTEST_SKIP() << "no file system in a file can be mounted here: " << disk.why();
  fills_up();
}

// They only describe a run that may have taken days, so failing to write them is no error. A folder with their name makes
// writing impossible.
TEST_F(FullDisk, ATraceAndAReportThatCannotBeWrittenTakeNothingFromARun) {
  Child child(launch(tiny("train", {"--durability", "none", "--save", "w.safetensors", "--steps", "40", "--json"})));
  child.read_lines(2);  // it waits there until the test reads on
  for (const auto* const file : {"trace.json", "report.html"}) fs::create_directory(at("run") / file);
  const auto outcome = succeeded(child.wait());
  for (const auto* const file : {"trace.json", "report.html"})
    EXPECT_EQ(1U, outcome.warnings(std::string(file) + " cannot be written: it is not a regular file but a directory"))
        << outcome.described;
  EXPECT_EQ(weights_of(outcome), json_in("run/result.json").at("weights_xxh64").get<std::string>());
  EXPECT_TRUE(fs::exists(at("w.safetensors")));
  expect_refusal(terrace({"report", "run"}), 1, {"report.html cannot be written", "terrace report run"});
  fs::remove(at("run/report.html"));
  EXPECT_EQ(0, terrace({"report", "run"}).exit);
}

TEST_F(FullDisk, WeightsThatFindNoRoomAreSavedLater) {
  PrivateMount disk(at("disk"));
  if (!disk.memory(64 * 1024)) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  const Words wanted{"--save", "disk/w.safetensors"};
  expect_refusal(train(wanted), 1, {"disk/w.safetensors", "No space left on device (errno 28)", "--resume auto"});
  EXPECT_TRUE(fs::is_empty(at("disk")));
  ASSERT_EQ(0, ::mount("", at("disk").c_str(), "", MS_REMOUNT, "size=4m"));
  succeeded(train(wanted + Words{"--resume", "auto"}));
  ASSERT_EQ(0, train({"--out-dir", "other", "--save", "w.safetensors"}).exit);
  EXPECT_EQ(scratch_.read("w.safetensors"), scratch_.read("disk/w.safetensors"));
}

TEST_F(FullDisk, AnExportThatFindsNoRoomIsRepeated) {
  ASSERT_EQ(0, train({}).exit);
  PrivateMount disk(at("disk"));
  if (!disk.memory(64 * 1024)) GTEST_SKIP() << "mounting is not permitted here: " << disk.why();
  const Words wanted{"ckpt", "export", "run", "disk/model"};
  expect_refusal(terrace(wanted), 1, {"disk/model/", "No space left on device (errno 28)", "repeat the command"});
  ASSERT_EQ(0, ::mount("", at("disk").c_str(), "", MS_REMOUNT, "size=4m"));
  succeeded(terrace(wanted));
  ASSERT_EQ(0, terrace({"ckpt", "export", "run", "other"}).exit);
  EXPECT_EQ(scratch_.read("other/model.safetensors"), scratch_.read("disk/model/model.safetensors"));
}

// Works on every system: a limit on file sizes makes the same calls fail, with another errno.
TEST_F(FullDisk, AFileSizeLimitIsAnErrorAndNotASignal) {
  auto limited = launch(tiny("train", {"--nvme-path", "disk"}));
  limited.in_child = [] {
    const rlimit limit{64 * 1024, 64 * 1024};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) ::_exit(kNotPermitted);
  };
  expect_refusal(run(limited), 1, {"disk/terrace-", "File too large (errno 27)", "ulimit -f"});
  succeeded(train({"--nvme-path", "disk"}));
}

}  // namespace
}  // namespace terrace::test
