// The algorithms that a device's math chose on this machine (Math::algorithms()), kept in the machine profile's file beside the
// rates: a new run begins with them, so that whatever chooses, or tunes, does so once a machine and not once a run.
//
// Threads: any; of two processes that add at once, one may lose its lines, which the next run adds again.
// Errors:  Error(Exit::usage) for a malformed profile file.
#pragma once

#include <filesystem>
#include <string>

namespace terrace {

// A line each; empty where there is no such file, or none are kept in it.
std::string algorithms_in_profile(const std::filesystem::path& file);
// What is kept stays as it is, and products that are new are added. Lines of another library (the line "library …") are no
// longer good for anything: all are replaced. Without a profile nothing is kept.
void add_algorithms_to_profile(const std::filesystem::path& file, const std::string& chosen);

}  // namespace terrace
