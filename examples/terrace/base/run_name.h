// The name of a run: the last part of its directory's path.
//
// Threads: any. Errors: none.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::cli {

std::string name_of_run(const std::filesystem::path& directory);

}  // namespace terrace::cli
