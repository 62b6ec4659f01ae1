// The algorithms that a device's math chose on this machine (Math::algorithms()), kept in the machine profile's file beside the
// rates. A new run starts with them, so that algorithms are chosen or tuned once per machine and not once per run.
//
// Threads: any; if two processes add at the same time, the lines of one may be lost, and the next run adds them again.
// Errors:  Error(ErrorKind::refused) for a malformed profile file.
#pragma once

#include <filesystem>
#include <string>

namespace terrace::profile {

// One per line; empty if the file does not exist or contains none.
std::string algorithms_in_profile(const std::filesystem::path& file);
// Keeps existing lines and adds lines for new products. If the existing lines are from another library version (the line
// "library …"), replaces them all. Does nothing if the file does not exist.
void add_algorithms_to_profile(const std::filesystem::path& file, const std::string& chosen);

}  // namespace terrace::profile
