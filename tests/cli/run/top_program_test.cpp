// `terrace top` in a terminal: it redraws in place, Ctrl-C ends it with 0, and the terminal is restored.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <terrace/tests/cli/cli_test.h>

namespace terrace::test {
namespace {

using Top = Cli;

TEST_F(Top, CtrlCEndsItAndRestoresTheTerminal) {
  ASSERT_EQ(0, train({"--out-dir", "run"}).exit);
  const auto what = launch({"top", "run"});
  const winsize size{.ws_row = 15, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  int terminal = -1;
  const auto child = ::forkpty(&terminal, nullptr, nullptr, &size);
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::setenv("TERM", "xterm", 1);
    if (::chdir(what.folder.c_str()) != 0) ::_exit(1);
    ::execl(what.program.c_str(), "terrace", "top", "run", nullptr);
    ::_exit(1);
  }
  std::string said;
  const auto read_until = [&](const std::string& text) {
    for (char buffer[4096]; said.find(text) == std::string::npos;) {
      const auto n = ::read(terminal, buffer, sizeof buffer);
      if (n <= 0) return false;
      said.append(buffer, static_cast<std::size_t>(n));
    }
    return true;
  };
  const bool drawn = read_until("\x1b[J");
  const auto typed = ::write(terminal, "\x03", 1);
  const bool restored = read_until("\x1b[?25h\x1b[?1049l");
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_TRUE(drawn) << said;
  EXPECT_EQ(1, typed);
  EXPECT_TRUE(restored) << said;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(said, testing::StartsWith("\x1b[?1049h\x1b[?25l\x1b[H\x1b[1mrun\x1b[0m  finished")) << said;
  EXPECT_LE(std::ranges::count(said.substr(0, said.find("\x1b[J")), '\n'), 14) << "more lines than the terminal has";
}

TEST_F(Top, WithoutATerminalItPrintsOneFrame) {
  ASSERT_EQ(0, train({"--out-dir", "run", "--steps", "4"}).exit);
  EXPECT_EQ(0, terrace({"top", "run"}).exit);
  const auto outcome = terrace({"top", "run", "nothing"});
  EXPECT_EQ(2, outcome.exit) << outcome.described;
  EXPECT_THAT(outcome.out, AllOf(testing::StartsWith("run  finished\nstep      4/4  100.0 %"), HasSubstr("after step 4"),
                                 HasSubstr("\nnothing  no such directory\n"), Not(HasSubstr("\x1b"))));
}

TEST_F(Top, ARunThatTrainsIsRunning) {
  Child child(launch(tiny("train", {"--steps", "1000", "--json", "--out-dir", "run"})));
  child.read_lines(3);
  const auto outcome = terrace({"top", "run"});
  EXPECT_THAT(outcome.out, testing::ContainsRegex("^run  running \\(process [0-9]+\\)\n"));
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("/1000"), HasSubstr("left"), HasSubstr("none yet"))) << outcome.described;
  child.send(SIGKILL);
  (void)child.wait();
  EXPECT_THAT(terrace({"top", "run"}).out, testing::StartsWith("run  stopped, no process has it\n"));
}

}  // namespace
}  // namespace terrace::test
