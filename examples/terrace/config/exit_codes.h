// The exit codes of the program, and what each means, for the help, the manual page and docs/reference/exit-codes.md.
//
// Owner:   constant data. Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <terrace/core/base/error.h>

namespace terrace::cli {

enum class Exit : int {
  ok = 0,
  runtime = 1,
  usage = 2,             // command line or configuration
  does_not_fit = 3,      // the plan does not fit into the budgets
  hardware_missing = 4,  // required hardware is absent
  corrupt = 5,           // stored state is corrupt
  interrupted = 75,      // stopped by a signal, resumable
};
Exit exit_of(ErrorKind kind);

struct ExitCode {
  Exit code;
  std::string_view brief;    // its short name in lists
  std::string_view meaning;  // when the program ends with it
  std::string_view advice;   // what to do next; empty: nothing
};

std::span<const ExitCode> exit_codes();
// "0 done, 1 run-time error, …"
std::string brief_exit_codes();

}  // namespace terrace::cli
