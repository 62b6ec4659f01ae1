// terrace launch: what it starts, how it stops the ranks, and which output of mpirun and the ranks it prints.
#ifdef TERRACE_MPIRUN
#include <signal.h>

#include <algorithm>
#include <fstream>

#include <fmt/format.h>

#include <terrace/tests/cli/faults/private_mount.h>
#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;

// The same with processes: one error, with its code, from the rank that failed.
TEST_F(Ranks, LaunchPrintsTheReasonAndNotItsConsequences) {
  fs::create_directory(at("nv"));
  const auto with = [&](const char* steps) {
    return run(processes(1, 0, "run", {"--steps", steps, "--nvme-path", "nv", "--resume", "auto", "--pp", "2"}, 2));
  };
  succeeded(with("4"));
  ASSERT_FALSE(damage_second_moment("nv").is_null());
  for (int i = 0; i < 3; ++i) {
    const auto second = with("8");
    expect_refusal(second, 5, {"error: rank 1: chunk ", "is not what was written"});
    EXPECT_EQ(second.err.find("error: "), second.err.rfind("error: ")) << second.described;
    EXPECT_THAT(second.err, Not(HasSubstr("another rank failed"))) << second.described;
  }
}

// A stop signal to `launch`, or to its process group as with Ctrl-C, reaches the ranks: they commit and exit with 75.
TEST_F(Ranks, LaunchStopsTheRanksCleanly) {
  const auto more = [](int steps) {
    return Words{"--lr-schedule", "constant", "--resume", "auto", "--steps", std::to_string(steps)};
  };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, -SIGINT}) {
    const auto name = fmt::format("run{}", signal);
    auto started = processes(2, 3, name, more(5000));
    started.in_child = [] { ::setpgid(0, 0); };
    Child child(started);
    child.read_lines(9);
    if (signal < 0)
      child.send_to_group(-signal);
    else
      child.send(signal);
    const auto stopped = child.wait();
    ASSERT_EQ(75, stopped.exit) << stopped.described;
    EXPECT_THAT(stopped.out, HasSubstr("stopped by terrace launch after step")) << stopped.described;
    const auto command = "terrace launch -n 2 -- train --resume " + at(name).string();
    EXPECT_THAT(stopped.out, HasSubstr("; continue with: " + command + "\n")) << stopped.described;
    EXPECT_EQ("", stopped.err) << stopped.described;
    const auto inspected = succeeded(terrace({"ckpt", "inspect", name, "--json"}));
    const auto last = nlohmann::json::parse(inspected.out)["step"].get<int>() + 2;
    EXPECT_GE(last, 8) << inspected.described;
    if (signal != SIGTERM) continue;
    const auto rest =
        succeeded(terrace({"launch", "-n", "2", "--", "train", "--resume", name, "--steps", std::to_string(last)}));
    EXPECT_EQ(weights_of(train(threads(2, 3, "whole", more(last)))), weights_of(rest));
  }
}

// All ranks commit after the same step, so the run has one commit more, and continue.
TEST_F(Ranks, LaunchPassesOnTheWishForACommit) {
  const Words more{"--lr-schedule", "constant", "--steps", "60"};
  Child child(processes(2, 3, "run", more));
  child.read_lines(8);
  child.send(SIGUSR1);
  const auto outcome = succeeded(child.wait());
  EXPECT_THAT(outcome.out, HasSubstr("because of SIGUSR1")) << outcome.described;
  EXPECT_EQ(weights_of(train(threads(2, 3, "whole", more))), weights_of(outcome));
  EXPECT_GE(nlohmann::json::parse(succeeded(terrace({"ckpt", "inspect", "run", "--json"})).out)["commit"].get<int>(), 2);
}

// mpirun's own messages are only shown if a run failed and nothing else gives the reason.
TEST_F(Ranks, LaunchKeepsBackWhatMpirunSaysOfItself) {
  scratch_.write("mpirun",
                 "#!/bin/sh\necho '[node:5769] PMIX ERROR: PMIX_ERR_UNREACH in file server.c at line 3184' >&2\n"
                 "echo 'warning: of a rank' >&2\nexit $ENDS_WITH\n");
  fs::permissions(at("mpirun"), fs::perms::owner_all);
  for (const std::string code : {"0", "1"}) {
    auto launched = launch({"launch", "-n", "2", "--mpirun", at("mpirun").string(), "--", "train"});
    launched.environment["ENDS_WITH"] = code;
    const auto ended = run(launched);
    EXPECT_EQ(std::stoi(code), ended.exit) << ended.described;
    const std::string warning = "warning: of a rank\n";
    EXPECT_EQ(code == "0" ? warning : warning + "[node:5769] PMIX ERROR: PMIX_ERR_UNREACH in file server.c at line 3184\n",
              ended.err);
  }
}

TEST_F(Ranks, LaunchPrintsAnErrorOnceAndEndsWithItsCode) {
  const auto flag = run(processes(2, 3, "run", {"--stepz", "3"}));
  EXPECT_EQ(2, flag.exit) << flag.described;
  EXPECT_EQ("error: unknown flag --stepz; did you mean --steps?\n  see terrace train --help\n", flag.err);
  const auto small = run(processes(2, 3, "run", {"--device-memory", "4KiB"}));
  EXPECT_EQ(3, small.exit) << small.described;
  EXPECT_THAT(small.err, testing::StartsWith("error: rank 0: the plan does not fit into the device tier"));
  EXPECT_THAT(small.err, Not(HasSubstr("-----")));
  EXPECT_THAT(small.err, Not(HasSubstr("mpirun")));

  auto killed = processes(2, 3, "killed", {"--steps", "5000"});
  Child child(killed);
  child.read_lines(8);
  std::ifstream log(at("killed/rank1.log"));
  const std::string text{std::istreambuf_iterator<char>(log), {}};
  const auto place = text.find("process ");
  ASSERT_NE(std::string::npos, place) << text;
  ASSERT_EQ(0, ::kill(std::stoi(text.substr(place + 8)), SIGKILL));
  const auto outcome = child.wait();
  EXPECT_EQ(137, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.err, testing::StartsWith("error: rank 1 was ended by signal 9 (Killed)\n  ")) << outcome.described;
  EXPECT_EQ(2, std::ranges::count(outcome.err, '\n')) << outcome.described;
}

// mpirun may wait for ever for ranks that died while starting.
TEST_F(Ranks, LaunchEndsAnMpirunThatOutlivesItsRanks) {
  scratch_.write("mpirun", "#!/bin/sh\n\"$PROGRAM\" --version >&2\nexec sleep 600\n");
  fs::permissions(at("mpirun"), fs::perms::owner_all);
  auto launched = launch({"launch", "-n", "2", "--mpirun", at("mpirun").string(), "--", "train"});
  launched.environment["PROGRAM"] = TERRACE_PROGRAM;
  expect_refusal(run(launched), 1, {"mpirun was still running 10 s after its last rank had ended, and was ended\n"});
}

// mpirun returns the code of the rank that it saw end first; that rank may have ended because of another one.
TEST_F(Ranks, LaunchEndsWithTheCodeOfTheCause) {
  scratch_.write("mpirun", "#!/bin/sh\n\"$PROGRAM\" ckpt verify damaged\nexit 1\n");
  fs::permissions(at("mpirun"), fs::perms::owner_all);
  ASSERT_EQ(0, train({"--out-dir", "damaged"}).exit);
  fs::remove_all(at("damaged/store"));
  auto launched = launch({"launch", "-n", "2", "--mpirun", at("mpirun").string(), "--", "train"});
  launched.environment["PROGRAM"] = TERRACE_PROGRAM;
  const auto alone = terrace({"ckpt", "verify", "damaged"});
  EXPECT_GT(alone.exit, 1) << alone.described;
  const auto outcome = run(launched);
  EXPECT_EQ(alone.exit, outcome.exit) << outcome.described;
}

TEST_F(Ranks, LaunchNeedsSharedMemory) {
  PrivateMount shared("/dev/shm");
  if (!shared.memory(1 << 20)) GTEST_SKIP() << "mounting is not permitted here: " << shared.why();
  const auto refused = run(processes(2, 3, "run"));
  expect_refusal(refused, 1, {"launch: /dev/shm has 1.00 MiB free", "--shm-size"});
  EXPECT_FALSE(std::filesystem::exists(at("run")));
  ASSERT_EQ(0, ::mount("", "/dev/shm", "", MS_REMOUNT, "size=5m"));
  succeeded(run(processes(2, 3, "run")));
}

TEST_F(Ranks, LaunchNeedsRoomForTheFilesOfItsJob) {
  fs::create_directory(at("temporary"));
  PrivateMount temporary(at("temporary"));
  if (!temporary.memory(8 << 20)) GTEST_SKIP() << "mounting is not permitted here: " << temporary.why();
  auto started = processes(2, 3, "run");
  for (const auto* const name : {"temporary", "temporary/new"}) {
    started.environment["TMPDIR"] = at(name).string();
    expect_refusal(run(started), 1, {"temporary has 8.00 MiB free, and Open MPI keeps files of its job there", "in TMPDIR"});
  }
  EXPECT_FALSE(fs::exists(at("run")));
  ASSERT_EQ(0, ::mount("", at("temporary").c_str(), "", MS_REMOUNT, "size=9m"));
  succeeded(run(started));
}

// Open MPI gives its ranks a pseudo-terminal, whatever its own output is.
TEST_F(Ranks, PipedOutputOfRanksHasNoEscapeCodes) {
  auto started = processes(2, 3, "run");
  started.environment["TERM"] = "xterm";
  auto direct = without_launch(started);
  *(std::ranges::find(direct.arguments, "run")) = "direct";
  for (const auto& launched : {started, direct}) {
    const auto outcome = succeeded(run(launched));
    EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b"))) << outcome.described;
    EXPECT_THAT(outcome.out, Not(HasSubstr("\r"))) << outcome.described;  // a progress bar
  }
}

// Output of an mpirun and its ranks on standard error, in an order that real ones cannot be forced to produce.
TEST_F(Ranks, LaunchFiltersWhatMpirunWrites) {
  const auto with = [&](const std::string& script) {
    scratch_.write("mpirun", "#!/bin/sh\n" + script);
    fs::permissions(at("mpirun"), fs::perms::owner_all);
    return terrace({"launch", "-n", "2", "--mpirun", at("mpirun").string(), "--", "train"});
  };
  const std::string dashes(74, '-');
  const auto paragraph = [&](const std::string& text) { return "echo '" + dashes + "\n" + text + "\n" + dashes + "' >&2\n"; };
  const auto many = with(
      "echo 'warning: w' >&2; echo 'warning: w' >&2; echo 'a line' >&2\n"
      "echo 'error: rank 1: another rank failed: world: rank 0 has left' >&2\n" +
      paragraph("Primary job  terminated normally, but 1 process returned\na non-zero exit code.") +
      "printf 'error: rank 0: no space\n  free ' >&2; sleep 0.3; printf '3 MiB\n' >&2\n"
      "echo 'error: rank 1: no space\n  free 3 MiB' >&2; echo '[n:12] 1 more process has sent help message' >&2\n"
      "exit 5\n");
  EXPECT_EQ(5, many.exit) << many.described;
  EXPECT_EQ("warning: w\na line\nerror: rank 0: no space\n  free 3 MiB\n", many.err);
  const auto consequence =
      with("echo 'error: rank 1: another rank failed: died' >&2\n" + paragraph("Primary job") + "exit 1\n");
  EXPECT_EQ("error: rank 1: another rank failed: died\n", consequence.err);
  const auto slots = with(paragraph("There are not enough slots available") + "exit 1\n");
  EXPECT_EQ("There are not enough slots available\n", slots.err);
  const auto fine = with(paragraph("a hint") + "exit 0\n");
  EXPECT_EQ(0, fine.exit);
  EXPECT_EQ("", fine.err);
  const auto absent = terrace({"launch", "-n", "2", "--mpirun", "/no/such", "--", "train"});
  expect_refusal(absent, 4, {"/no/such cannot be started: No such file or directory", "apt install openmpi-bin", "--dp 2"});
}

}  // namespace
}  // namespace terrace::test
#endif
