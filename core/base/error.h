// Errors as the user sees them: what failed, on what, why, and how to fix it, with the process's exit code.
//
// Owner:   values; thrown at call boundaries, carried by events and completions between threads.
// Threads: any.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace terrace {

// The documented exit codes of every terrace program.
enum class Exit : int {
  ok = 0,
  runtime = 1,
  usage = 2,             // command line or configuration
  does_not_fit = 3,      // the plan does not fit into the budgets
  hardware_missing = 4,  // required hardware is absent
  corrupt = 5,           // stored state is corrupt
  interrupted = 75,      // stopped by a signal, resumable
};

class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& what, Exit exit = Exit::runtime) : std::runtime_error(what), exit_(exit) {}
  [[nodiscard]] Exit exit() const noexcept { return exit_; }

 private:
  Exit exit_;
};

// "No space left on device (errno 28)"
std::string describe_errno(int error_number);

// The text of any exception for a message. For one of std::filesystem it has the path and the reason, as errors of terrace do.
std::string describe(const std::exception& error);

}  // namespace terrace
