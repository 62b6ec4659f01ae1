// What each exit code means, for the help, the manual page and docs/reference/exit-codes.md.
//
// Owner:   constant data. Threads: any. Errors: none.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <terrace/core/base/error.h>

namespace terrace::cli {

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
