// The algorithms that a device's math chose on this machine (Math::algorithms()), kept in the machine profile's file beside the
// rates. A new run starts with them, so that algorithms are chosen or tuned once per machine and not once per run.
//
// Threads: any; if two processes add at once, one may lose its lines, and the next run adds them again.
// Errors:  Error(Exit::usage) for a malformed profile file.
#pragma once

#include <filesystem>
#include <string>

namespace terrace {

// One per line; empty if there is no such file, or none are in it.
std::string algorithms_in_profile(const std::filesystem::path& file);
// Keeps existing lines and adds those for new products. If the lines are of another library version (the line "library …"),
// all are replaced. Does nothing without a profile.
void add_algorithms_to_profile(const std::filesystem::path& file, const std::string& chosen);

}  // namespace terrace
