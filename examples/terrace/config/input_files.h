// Checks the files that the flags of a run name: no input may also be an output, or the temporary file (NAME.tmp) as which an
// output is written.
//
// Threads: any. Errors: Error(ErrorKind::refused).
#pragma once

#include <span>
#include <string>

#include <terrace/examples/terrace/cli/command_line.h>

namespace terrace::cli {

void demand_inputs_stay(const CommandLine& line, std::span<const std::string> config_files);

}  // namespace terrace::cli
