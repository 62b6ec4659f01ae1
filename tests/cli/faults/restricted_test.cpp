// If io_uring is forbidden, threads read and write; if memory cannot be locked, it stays unlocked. Each gives one warning with
// a remedy, and the weights are the same.
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include <terrace/tests/cli/cli_test.h>
#include <terrace/tests/cli/faults/forbidden_call.h>

namespace terrace::test {
namespace {

// As with a container's profile (EPERM) or an old kernel (ENOSYS).
void forbid_io_uring(int error_number, unsigned call = __NR_io_uring_setup) { forbid_call(call, error_number); }

// At most 16 KiB may be locked, even by root.
void forbid_locking() {
  const rlimit limit{16 * 1024, 16 * 1024};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) ::_exit(kNotPermitted);
  if (::geteuid() == 0 && ::prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0) != 0) ::_exit(kNotPermitted);
}

class Restricted : public Cli {
 protected:
  const Words offloaded_{"--nvme-path", "disk", "--device-memory", "1MiB", "--host-memory", "1MiB"};
};

TEST_F(Restricted, WithoutIoUringThreadsReadAndWrite) {
  const auto free = succeeded(train(offloaded_));
  for (const auto& [error_number, call] :
       {std::pair{EPERM, __NR_io_uring_setup}, {ENOSYS, __NR_io_uring_setup}, {EPERM, __NR_io_uring_register}}) {
    const auto dir = "run" + std::to_string(error_number) + "-" + std::to_string(call);
    auto restricted = launch(tiny("train", offloaded_ + Words{"--out-dir", dir}));
    restricted.in_child = [e = error_number, c = static_cast<unsigned>(call)] { forbid_io_uring(e, c); };
    const auto outcome = run(restricted);
    if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
    ASSERT_EQ(0, outcome.exit) << outcome.described;
    EXPECT_EQ(1U, outcome.warnings("io_uring")) << outcome.described;
    EXPECT_EQ(1U, outcome.warnings("(errno " + std::to_string(error_number) + ")")) << outcome.described;
    EXPECT_EQ(1U, outcome.warnings("kernel.io_uring_disabled")) << "it does not say how to mend it";
    EXPECT_EQ(weights_of(free), weights_of(outcome));
    EXPECT_EQ(steps("run"), steps(dir));

    auto doctor = launch({"doctor"});
    doctor.in_child = restricted.in_child;
    EXPECT_THAT(run(doctor).out, HasSubstr("WARN  io_uring"));
  }
}

TEST_F(Restricted, ABenchWithoutIoUringSaysSoOnceAndMeasuresThreads) {
  auto restricted =
      launch({"bench", "nvme", ".", "--op", "read", "--size", "1MiB", "--block-size", "64KiB", "--runs", "3", "--json"});
  restricted.in_child = [] { forbid_io_uring(EPERM); };
  const auto outcome = run(restricted);
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  EXPECT_EQ(1U, outcome.warnings("io_uring")) << outcome.described;
  EXPECT_EQ("threads", nlohmann::json::parse(outcome.out).at("machine").at("engine"));

  restricted.arguments.insert(restricted.arguments.end(), {"--engine", "uring"});
  expect_refusal(run(restricted), 4, {"io_uring is not permitted here", "--engine threads"});
}

TEST_F(Restricted, IoUringThatWasDemandedAndIsForbiddenIsAnError) {
  auto restricted = launch(tiny("train", offloaded_));
  restricted.environment["TERRACE_IO_ENGINE"] = "uring";
  restricted.in_child = [] { forbid_io_uring(EPERM); };
  const auto outcome = run(restricted);
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  expect_refusal(outcome, 1, {"TERRACE_IO_ENGINE=uring", "(errno 1)", "unset it"});
}

// As on NFS without its lock daemon: one warning per command, and every command works.
TEST_F(Restricted, WhereNothingCanBeLockedOneWarningSaysSo) {
  const auto unlocked = [&](const Words& words) {
    auto launched = launch(words);
    launched.in_child = [] { forbid_call(__NR_flock, ENOLCK); };
    return run(launched);
  };
  const Words ranks{"--dp", "2", "--zero", "1", "--resume", "auto"};
  const auto first = unlocked(tiny("train", ranks));
  if (first.exit == kNotPermitted) GTEST_SKIP() << "a seccomp filter is not permitted here";
  const auto expect_one = [](const Outcome& outcome) {
    EXPECT_EQ(0, outcome.exit) << outcome.described;
    EXPECT_EQ(1U, outcome.warnings("cannot be locked: No locks available (errno 37)")) << outcome.described;
  };
  expect_one(first);
  for (const auto& words :
       {tiny("train", ranks + Words{"--steps", "6"}), Words{"ckpt", "verify", "run"}, Words{"ckpt", "copy", "run", "copy"},
        Words{"generate", "run", "--prompt", "The", "--max-tokens", "2"}, Words{"ckpt", "rm", "run"}})
    expect_one(unlocked(words));
  EXPECT_EQ(0, train({"--resume", "copy", "--dp", "2", "--zero", "1", "--steps", "8"}).exit);
}

TEST_F(Restricted, WithoutLockedMemoryItTrainsAllTheSame) {
  const auto free = succeeded(train(offloaded_));
  auto restricted = launch(tiny("train", offloaded_ + Words{"--out-dir", "unlocked"}));
  restricted.in_child = forbid_locking;
  const auto outcome = run(restricted);
  if (outcome.exit == kNotPermitted) GTEST_SKIP() << "the right to lock memory cannot be given up here";
  ASSERT_EQ(0, outcome.exit) << outcome.described;
  EXPECT_EQ(1U, outcome.warnings("lock")) << outcome.described;
  EXPECT_EQ(1U, outcome.warnings("16.0 KiB")) << "it does not say what the limit is: " << outcome.err;
  EXPECT_EQ(1U, outcome.warnings("`ulimit -l unlimited`")) << "it does not say how to mend it: " << outcome.err;
  EXPECT_EQ(weights_of(free), weights_of(outcome));
}

}  // namespace
}  // namespace terrace::test
