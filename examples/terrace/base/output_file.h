// Checks the file that a command makes out of other files, before the work, which may take hours.
//
// Threads: any. Errors: Error(ErrorKind::refused).
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace terrace::cli {

// Throws if `out` is one of the files that the command reads, is a folder, or cannot be created; and if the command reads one
// of `unfinished`, the files that it writes until `out` is complete.
void demand_output(const std::filesystem::path& out, std::span<const std::string> read,
                   std::span<const std::filesystem::path> unfinished);
// For an output that gets its name when it is complete: it replaces an existing file, which must not be a device or a pipe.
void demand_regular(const std::filesystem::path& out);

}  // namespace terrace::cli
