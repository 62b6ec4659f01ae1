// Files of a model's directory that stand for others: directories are copied and cloned without what they link to.
//
// Threads: any.
// Errors:  Error(Exit::usage) that says how to fetch the file.
#pragma once

#include <filesystem>

namespace terrace {

// Refuses a link whose target does not exist, as in a copy of a cache, and the pointer that Git LFS leaves where a file was not
// fetched. A file that is absent or of any other content is the caller's.
void demand_fetched(const std::filesystem::path& file);

}  // namespace terrace
