// The file that a command makes out of other files. It is checked before the work, which may take hours.
//
// Threads: any. Errors: Error(Exit::usage).
#pragma once

#include <filesystem>
#include <span>
#include <string>

namespace terrace::cli {

// Throws if `out` is one of the files that the command reads, is a folder, or cannot be made where it is to be.
void demand_output(const std::filesystem::path& out, std::span<const std::string> read);

}  // namespace terrace::cli
