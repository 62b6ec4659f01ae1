// In `terrace top`, no line is wider than the terminal, all text of a run is escaped, and a run in any state gives a frame.
#include <terrace/examples/terrace/report/top_frame.h>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <terrace/examples/terrace/cli/command_line.h>
#include <terrace/examples/terrace/config/options.h>
#include <terrace/examples/terrace/metrics/metrics.h>

#include <terrace/tests/examples/scratch_folder.h>

namespace terrace::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

StepMetrics step(std::uint64_t number) {
  StepMetrics m;
  m.step = number, m.loss = 4.0 - 0.01 * static_cast<double>(number), m.grad_norm = 0.5, m.lr = 3e-4;
  m.tokens = 2048, m.step_time_s = 0.5, m.tokens_per_s = 4096;
  m.device_peak_bytes = 1ULL << 30, m.host_peak_bytes = 2ULL << 30, m.nvme_peak_bytes = 6ULL << 30;
  m.read_bytes = 1ULL << 30, m.write_bytes = 512ULL << 20, m.h2d_bytes = 3ULL << 30, m.d2h_bytes = 1ULL << 20;
  m.stall = {{"read", 0.1}, {"upload", 0.05}}, m.stall_s = 0.15;
  return m;
}

RunStatus running() {
  RunStatus run;
  run.state = RunStatus::State::running, run.name = "llama", run.pid = 4711, run.last_step = 1000;
  run.budgets[0] = "2GiB", run.budgets[1] = "auto", run.budgets[2] = "unlimited";
  for (std::uint64_t s = 1; s <= 100; ++s) {
    run.losses.push_back(step(s).loss.value());
    if (s > 80) run.recent.push_back(step(s));
  }
  run.eval_loss = 3.125, run.seconds_since_step = 2, run.commit = 50, run.seconds_since_commit = 25;
  run.commit_s = 0.5, run.total_s = 50;
  return run;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string out;
  for (const auto& line : lines) out += line + "\n";
  return out;
}

TEST(TopFrame, IsExactlyThisText) {
  auto run = running();
  run.losses = {4, 3.5, 3};
  const RunStatus runs[] = {run};
  EXPECT_EQ(text_of(top_frame(runs, {.columns = 80})),
            "llama  running (process 4711)\n"
            "step      100/1000  10.0 %  7m30s left  500ms a step  last one 2.00s ago\n"
            "loss      3.0000  █▅▁\n"
            "held-out  3.1250\n"
            "          gradient norm 0.500  rate 0.0003\n"
            "tokens/s  4096.0  2048 a step\n"
            "a step    disk→host 1.00 GiB, 2.00 GiB/s  host→disk 512 MiB, 1.00 GiB/s\n"
            "          host→dev 3.00 GiB, 6.00 GiB/s  dev→host 1.00 MiB, 2.00 MiB/s\n"
            "stall     30.0 %  read 20.0 %  upload 10.0 %\n"
            "peaks     device 1.00 GiB of 2.00 GiB (50 %)  host 2.00 GiB  disk 6.00 GiB\n"
            "commit    after step 50  25.0s ago  1.00 % of the time\n");
}

TEST(TopFrame, ARunResumedWithFewerStepsIsDone) {
  auto run = running();
  run.last_step = 7;
  const RunStatus runs[] = {run};
  EXPECT_THAT(text_of(top_frame(runs, {.columns = 80})), HasSubstr("\nstep      100/7  100.0 %  500ms a step"));
}

TEST(TopFrame, NoLineIsWiderThanTheTerminalNorAreThereMoreThanItHas) {
  auto other = running();
  other.name = std::string(200, 'x');
  other.problem = std::string(300, 'y') + " and no space";
  const RunStatus runs[] = {running(), other};
  for (std::size_t columns = 20; columns <= 200; ++columns)
    for (const std::size_t rows : {1, 5, 15, 40}) {
      const auto lines = top_frame(runs, {.columns = columns, .rows = rows});
      EXPECT_LE(lines.size(), rows);
      for (const auto& line : lines)
        EXPECT_LE(static_cast<std::size_t>(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; })), columns)
            << line;
    }
}

TEST(TopFrame, NothingOfARunIsPrintedUnescaped) {
  auto run = running();
  run.name = "a\x1b[31mb\nc\x9b";
  run.problem = "\x1b]0;title\x07";
  for (auto& m : run.recent) m.stall = {{"\x1b[2J", 0.1}};
  const RunStatus runs[] = {run};
  const auto text = text_of(top_frame(runs, {}));
  EXPECT_EQ(std::string::npos, text.find('\x1b')) << text;
  EXPECT_EQ(std::string::npos, text.find('\x07')) << text;
  EXPECT_THAT(text, testing::StartsWith("a\\x1b[31mb\\nc"));
}

TEST(TopFrame, ASparklineIsTheMeansOfEqualParts) {
  EXPECT_EQ("▁█", sparkline(std::vector<double>{0, 2, 4, 6}, 2));
  EXPECT_EQ("▁▂▃▄▅▆▇█", sparkline(std::vector<double>{0, 1, 2, 3, 4, 5, 6, 7}, 8));
  EXPECT_EQ("▁ █", sparkline(std::vector<double>{1, NAN, 2}, 9)) << "no more cells than values, and a gap";
  EXPECT_EQ("▁▁", sparkline(std::vector<double>{3, 3}, 2));
  EXPECT_EQ("", sparkline(std::vector<double>{}, 8));
}

TEST(RunWatcher, FollowsARunFromNothingToItsResult) {
  const ScratchFolder scratch;
  const auto dir = scratch / "run";
  RunWatcher watcher(dir);
  EXPECT_EQ(RunStatus::State::not_there, watcher.look().state);
  std::filesystem::create_directory(dir);
  EXPECT_EQ(RunStatus::State::not_started, watcher.look().state);
  MetricsWriter writer(dir / kMetricsFile, 0);
  writer.write(step(1));
  writer.write(step(2));
  EXPECT_EQ(2U, watcher.look().losses.size());
  writer.write(step(3));
  const auto three = watcher.look();
  EXPECT_THAT(three.losses, ElementsAre(step(1).loss, step(2).loss, step(3).loss));
  EXPECT_EQ(3U, three.recent.back().step);
  // Resumed after step 1: the file is another one, and shorter.
  MetricsWriter again(dir / kMetricsFile, 1);
  EXPECT_THAT(watcher.look().losses, ElementsAre(step(1).loss));
}

TEST(RunWatcher, DamageIsToldAndALineThatIsBeingWrittenIsAwaited) {
  const ScratchFolder scratch;
  MetricsWriter(scratch / kMetricsFile, 0).write(step(1));
  scratch.write(kConfigFile, to_toml(RunConfig{}));
  const auto whole = scratch.read(kMetricsFile);
  RunWatcher watcher(scratch.path());
  scratch.write(kMetricsFile, whole + whole.substr(0, 20));
  EXPECT_EQ(1U, watcher.look().losses.size());
  EXPECT_THAT(watcher.look().problem, Not(HasSubstr(kMetricsFile)));
  scratch.write(kMetricsFile, whole + "{\"st\n" + whole);
  const auto damaged = RunWatcher(scratch.path()).look();
  EXPECT_EQ(RunStatus::State::unreadable, damaged.state);
  EXPECT_THAT(damaged.problem, HasSubstr("metrics.jsonl, line 2"));
  scratch.write(kConfigFile, "steps = [");
  EXPECT_EQ(RunStatus::State::unreadable, RunWatcher(scratch.path()).look().state);
}

TEST(RunWatcher, FindsTheProcessThatHasTheLock) {
  const ScratchFolder scratch;
  struct stat info {};
  ASSERT_EQ(0, ::stat(scratch.path().c_str(), &info));
  const auto line = [&](const char* kind, int pid, unsigned long inode) {
    return fmt::format("1: {}  ADVISORY  WRITE {} {:02x}:{:02x}:{} 0 EOF\n", kind, pid, major(info.st_dev), minor(info.st_dev),
                       inode);
  };
  const auto inode = static_cast<unsigned long>(info.st_ino);
  EXPECT_EQ(0, holder_of_lock("", scratch.path()));
  EXPECT_EQ(0, holder_of_lock(line("POSIX", 12, inode) + line("FLOCK", 13, inode + 1) + "garbage\n", scratch.path()));
  EXPECT_EQ(14, holder_of_lock(line("FLOCK", 13, inode + 1) + line("FLOCK", 14, inode), scratch.path()));
}

}  // namespace
}  // namespace terrace::cli
