// Runs a program as a user does: a child process with arguments, environment and limits, and its output.
//
// Owner:   the caller; a child that still runs when its Child is destroyed is killed.
// Threads: one.
// Errors:  std::runtime_error if the child cannot be started, ends before the expected output, or does not end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace terrace::test {

struct Launch {
  std::filesystem::path program;
  std::vector<std::string> arguments;
  std::filesystem::path folder;                    // working directory
  std::map<std::string, std::string> environment;  // in addition to the test's own; an empty value removes the variable
  std::function<void()> in_child;                  // called before the program begins, for limits and filters;
                                                   // _exit(kNotPermitted) skips the test
};
inline constexpr int kNotPermitted = 99;  // an exit code that no program uses

struct Outcome {
  int exit = -1;          // -1: ended by a signal
  int signal = 0;         // that signal
  std::string out, err;   // its complete output
  std::string described;  // command line, end and all output, for the message of a failing test

  [[nodiscard]] std::vector<std::string> lines() const;                // of `out`
  [[nodiscard]] std::string last_line() const;                         // of `out`
  [[nodiscard]] std::size_t warnings(const std::string& about) const;  // lines of `err` with "warning:" and `about`
};

class Child {
 public:
  explicit Child(const Launch& launch);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Standard output is a pipe of one page that is only read here, so the child is never more than a page ahead of the test.
  void read_lines(std::size_t count);
  void close_output();  // like a terminal that is closed
  void send(int signal) const;
  void send_to_group(int signal) const;  // the child is the group's leader
  Outcome wait();
  // Waits at most this long, then kills the child. Reads its output meanwhile, so that the child never waits for the test.
  // `before` is called just before the kill, or after the child's end.
  Outcome kill_after(
      std::chrono::nanoseconds time, const std::function<void()>& before = [] {});
  // Only exists while the child runs.
  [[nodiscard]] std::filesystem::path proc() const { return std::filesystem::path("/proc") / std::to_string(pid_); }

 private:
  struct Pipe {
    int fd = -1;
    std::string* into = nullptr;
  };
  void read_some(std::vector<Pipe*> pipes);  // throws if the child prints nothing for very long
  bool read_within(std::vector<Pipe*> pipes, int milliseconds);

  pid_t pid_ = -1;
  Outcome outcome_;
  std::string command_;
  Pipe out_, err_;
};

Outcome run(const Launch& launch);
// Runs with standard output on a terminal of `columns` columns. Nothing if there are no pseudo-terminals.
std::optional<Outcome> run_on_terminal(Launch launch, unsigned short columns);

}  // namespace terrace::test
