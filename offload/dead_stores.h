// What a temporary store leaves when its process is killed, and who removes it: the next store beside it.
//
// A temporary store's folder is named <name>.temporary. Its data file loses its name as soon as it is open, so that its space
// comes back with the process; a folder with a lock file in it stays. It is known by its name, its owner and its lock, which
// nobody holds; and nothing but a lock and data is ever removed.
//
// Threads: any. Errors: none; what cannot be removed stays.
#pragma once

#include <filesystem>

namespace terrace {

inline constexpr const char* kTemporarySuffix = ".temporary";
inline constexpr const char* kDataName = "data";
inline constexpr const char* kLockName = "lock";

void remove_dead_temporaries(const std::filesystem::path& beside);

}  // namespace terrace
