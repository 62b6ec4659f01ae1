// Detects files in a model's directory that only stand for other files, because a directory was copied or cloned without them.
//
// Threads: any.
// Errors:  Error(ErrorKind::refused) that says how to fetch the file.
#pragma once

#include <filesystem>

namespace terrace::files {

// Refuses a link whose target does not exist (as in a copy of a cache), and a pointer that Git LFS leaves where a file was not
// fetched. A missing file, or one with any other content, is left to the caller.
void demand_fetched(const std::filesystem::path& file);

}  // namespace terrace::files
