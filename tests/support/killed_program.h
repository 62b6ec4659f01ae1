// A program that commits and says so, and is killed at a random moment: one line "N" on its standard output for each commit
// that it was told is made.
//
// Owner: the test. Threads: one at a time. Errors: std::runtime_error.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace terrace::test {

struct Killed {
  std::uint64_t last = 0;   // the last number that it wrote; `before` if none
  bool was_killed = false;  // false: it had ended by itself
  int exit = 0;
};

// Lets it write a random number of lines, at most `most_lines`, and then a random time pass, before it is killed.
inline Killed run_and_kill(std::vector<std::string> arguments, std::uint64_t before, int most_lines,
                           std::chrono::microseconds longest, std::mt19937_64& random) {
  int pipe_ends[2];
  if (::pipe2(pipe_ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const auto child = ::fork();
  if (child < 0) throw std::runtime_error("fork");
  if (child == 0) {
    ::dup2(pipe_ends[1], STDOUT_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(pipe_ends[1]);
  Killed result{.last = before};
  std::string line;
  const auto read_byte = [&] {
    char c = 0;
    if (::read(pipe_ends[0], &c, 1) != 1) return false;
    if (c == '\n')
      result.last = std::stoull(std::exchange(line, {}));
    else
      line += c;
    return true;
  };
  const auto lines = random() % static_cast<std::uint64_t>(most_lines + 1);
  for (std::uint64_t n = 0; n < lines;) {
    const auto was = result.last;
    if (!read_byte()) break;
    n += result.last != was ? 1 : 0;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % static_cast<std::uint64_t>(longest.count() + 1)));
  ::kill(child, SIGKILL);
  while (read_byte()) {  // what it wrote before it died
  }
  ::close(pipe_ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  result.was_killed = WIFSIGNALED(status);
  result.exit = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  return result;
}

}  // namespace terrace::test
