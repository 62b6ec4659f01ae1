// The I/O engine that the user forces with TERRACE_IO_ENGINE, for all benches that do not choose one themselves.
//
// Threads: any. Errors: none.
#pragma once

#include <cstdlib>

#include <terrace/offload/io/io_choice.h>

namespace terrace::bench {

inline IoChoice io_of_environment() {
  const char* const engine = std::getenv("TERRACE_IO_ENGINE");
  return {.engine = engine ? engine : ""};
}

}  // namespace terrace::bench
