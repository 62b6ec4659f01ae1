// The files that the flags of a run name: none that is read may be one that is written, or the temporary file (NAME.tmp) as
// which one is written.
//
// Threads: any. Errors: Error(Exit::usage).
#pragma once

#include <span>
#include <string>

#include <terrace/examples/terrace/command_line.h>

namespace terrace::cli {

void demand_inputs_stay(const CommandLine& line, std::span<const std::string> config_files);

}  // namespace terrace::cli
