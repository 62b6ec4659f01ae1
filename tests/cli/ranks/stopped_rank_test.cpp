// A rank is stopped (SIGSTOP) outside the steps while the others wait for it: they end with an error that names it.
#ifdef TERRACE_MPIRUN
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <thread>

#include <fmt/format.h>

#include <terrace/tests/cli/ranks/on_ranks.h>

namespace terrace::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// The first of two ranks writes to a full named pipe, so it waits there: at its first line, before the first step, or, if the
// run is already finished, at its last lines.
class StoppedRanks : public Ranks {
 protected:
  static constexpr auto kUntilItWaits = 4s, kDeadline = 10s;
  static constexpr std::size_t kPage = 4096;

  StoppedRanks() {
    EXPECT_EQ(0, ::mkfifo(at("out").c_str(), 0600));
    out_ = ::open(at("out").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  }
  ~StoppedRanks() override {
    for (const auto process : processes_)
      if (HasFailure() && process > 0) ::kill(process, SIGKILL);
    ::close(out_);
  }

  enum class By : bool { mpirun, launch };
  [[nodiscard]] Launch two_ranks(const Words& more, By by) {
    std::string words = TERRACE_PROGRAM;
    for (const auto& word : tiny("train", on(2, 3, "run", more + Words{"--rank-deadline", std::to_string(kDeadline.count())})))
      words += " '" + word + "'";
    script("rank", "echo $$ > process.$OMPI_COMM_WORLD_RANK\nif [ $OMPI_COMM_WORLD_RANK = 0 ]; then exec " + words +
                       " > out; fi\nexec " + words + "\n");
    script("mpirun", fmt::format("exec {} --bind-to none --oversubscribe --allow-run-as-root -n 2 {}\n", TERRACE_MPIRUN,
                                 at("rank").string()));
    auto started = launch({"launch", "-n", "2", "--mpirun", at("mpirun").string(), "--", "train"});
    if (by == By::mpirun) started.program = at("mpirun"), started.arguments.clear();
    started.environment["ASAN_OPTIONS"] = "detect_leaks=0";  // Open MPI does not free all memory before the process ends
    return started;
  }
  // Waits until the first rank, which has just been started, waits for its output, and the other rank waits for the first one.
  void wait_until_they_wait() {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      const auto file = at(fmt::format("process.{}", rank));
      processes_[rank] = 0;
      for (int i = 0; i < 3000 && processes_[rank] == 0; ++i, std::this_thread::sleep_for(10ms))
        std::ifstream(file) >> processes_[rank];
      ASSERT_NE(0, processes_[rank]) << rank << " did not start";
      fs::remove(file);
    }
    std::this_thread::sleep_for(kUntilItWaits);
  }
  void fill() const {
    const std::array<char, kPage> page{};
    while (::write(out_, page.data(), page.size()) > 0) {
    }
  }
  void drain() const {
    std::array<char, kPage> page{};
    while (::read(out_, page.data(), page.size()) > 0) {
    }
  }
  void send(std::size_t rank, int signal) const {
    ASSERT_GT(processes_[rank], 0);
    ASSERT_EQ(0, ::kill(processes_[rank], signal)) << "rank " << rank;
  }
  void expect_no_rank_left() const {
    for (const auto process : processes_) {
      for (int i = 0; i < 1000 && ::kill(process, 0) == 0; ++i) std::this_thread::sleep_for(10ms);
      EXPECT_NE(0, ::kill(process, 0)) << process;
    }
  }
  // The error says where the other rank waited. On a slow machine this may be an earlier place than the intended one.
  void expect_named(const Outcome& outcome, std::size_t rank) const {
    EXPECT_EQ(1, outcome.exit) << outcome.described;
    EXPECT_THAT(outcome.err, testing::AnyOf(HasSubstr(fmt::format("rank {} (process {})", rank, processes_[rank])),
                                            HasSubstr(fmt::format("rank {} has given no sign of life for 10 s", rank))))
        << outcome.described;
  }

  std::array<pid_t, 2> processes_{};

 private:
  void script(const std::string& name, const std::string& text) {
    scratch_.write(name, "#!/bin/sh\n" + text);
    fs::permissions(at(name), fs::perms::owner_all);
  }

  int out_ = -1;
};

// At this point ranks only exchange agreements, which wait for busy ranks without a limit.
TEST_F(StoppedRanks, BeforeTheFirstStep) {
  for (const auto* const ranks_per_machine : {"0", "1"}) {
    fill();
    Child child(two_ranks({"--ranks-per-machine", ranks_per_machine, "--resume", "auto"}, By::mpirun));
    wait_until_they_wait();
    send(0, SIGSTOP);
    const auto outcome = child.wait();
    drain();
    expect_named(outcome, 0);
    expect_no_rank_left();
  }
  EXPECT_EQ(weights_of(train(threads(2, 3, "whole"))), weights_of(run(processes(2, 3, "run", {"--resume", "auto"}))));
}

// A rank that waits in MPI's end has already sent everything that the other one needs to end, so the launcher would wait for
// ever.
TEST_F(StoppedRanks, AfterTheLastStep) {
  const auto done = succeeded(train(threads(2, 3, "run")));
  for (const auto by : {By::mpirun, By::launch})
    for (const std::size_t stopped : {0U, 1U}) {
      fill();
      Child child(two_ranks({"--ranks-per-machine", by == By::mpirun ? "1" : "0", "--resume", "auto"}, by));
      wait_until_they_wait();
      send(stopped, SIGSTOP);
      if (stopped != 0) drain();
      const auto outcome = child.wait();
      drain();
      expect_named(outcome, stopped);
      expect_no_rank_left();
    }
  EXPECT_EQ(weights_of(done), weights_of(run(processes(2, 3, "run", {"--resume", "auto"}))));
}

// A busy rank is waited for, and so is a job that was stopped as a whole, as by Ctrl-Z.
TEST_F(StoppedRanks, ABusyRankEndsNothing) {
  fill();
  Child child(two_ranks({"--ranks-per-machine", "1"}, By::mpirun));
  wait_until_they_wait();
  for (const int signal : {SIGSTOP, SIGCONT}) {
    for (const std::size_t rank : {0U, 1U}) send(rank, signal);
    std::this_thread::sleep_for(kDeadline + 2s);
  }
  drain();
  succeeded(child.wait());
  EXPECT_EQ(5, steps("run").size());
}

}  // namespace
}  // namespace terrace::test
#endif
