// terrace plan --pp: what each rank of a pipeline would hold and move, and how long a step takes with the waits for one
// another.
//
// Threads: main's. Errors: as plan_command(); a rank whose layers do not fit is named.
#pragma once

#include <terrace/core/error.h>
#include <terrace/examples/terrace/command_line.h>

namespace terrace::cli {

Exit plan_pipeline(const CommandLine& line);

}  // namespace terrace::cli
