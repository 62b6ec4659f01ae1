// A program as its user runs it: a child process with arguments, environment and limits, and what it said.
//
// Owner:   the caller; a child that still runs when its Child ends is killed.
// Threads: one.
// Errors:  std::runtime_error when the child cannot be started, ends before it said enough, or does not end at all.
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
  std::filesystem::path folder;                    // to run in
  std::map<std::string, std::string> environment;  // beside the test's own; an empty value removes the variable
  std::function<void()> in_child;                  // before the program begins: limits and filters; _exit(kNotPermitted) skips
};
inline constexpr int kNotPermitted = 99;  // no program's exit code

struct Outcome {
  int exit = -1;          // -1: a signal ended it
  int signal = 0;         // which
  std::string out, err;   // all that it wrote
  std::string described;  // the command line, the end and all output, for a failing test

  [[nodiscard]] std::vector<std::string> lines() const;                // of `out`
  [[nodiscard]] std::string last_line() const;                         // of `out`
  [[nodiscard]] std::size_t warnings(const std::string& about) const;  // lines of `err` that begin "warning:" and name it
};

class Child {
 public:
  explicit Child(const Launch& launch);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Its standard output is a pipe of one page that nobody reads meanwhile: the child is never more than a page ahead of us.
  void read_lines(std::size_t count);
  void close_output();  // as a terminal that goes away
  void send(int signal) const;
  void send_to_group(int signal) const;  // of which the child is the leader
  Outcome wait();
  // Waits no longer than that, then kills it. Its output is read meanwhile, so that it never waits for us. `before` is called
  // at that moment, or at its end.
  Outcome kill_after(
      std::chrono::nanoseconds time, const std::function<void()>& before = [] {});
  // As /proc tells it: while it runs.
  [[nodiscard]] std::filesystem::path proc() const { return std::filesystem::path("/proc") / std::to_string(pid_); }

 private:
  struct Pipe {
    int fd = -1;
    std::string* into = nullptr;
  };
  void read_some(std::vector<Pipe*> pipes);  // throws when the child says nothing for very long
  bool read_within(std::vector<Pipe*> pipes, int milliseconds);

  pid_t pid_ = -1;
  Outcome outcome_;
  std::string command_;
  Pipe out_, err_;
};

Outcome run(const Launch& launch);
// With its standard output on a terminal of so many columns. Nothing: there are no pseudo-terminals here.
std::optional<Outcome> run_on_terminal(Launch launch, unsigned short columns);

}  // namespace terrace::test
