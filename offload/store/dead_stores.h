// Removes the folders of temporary stores whose process was killed. The next store in the same directory calls this.
//
// A temporary store's folder is named <name>.temporary. Its data file is unlinked as soon as it is open, so that its space is
// freed when the process ends; the folder with its lock file stays. Such a folder is recognised by its name, its owner and a
// lock that no process holds. Only a lock file and a data file are ever removed from it.
//
// Threads: any. Errors: none; a folder that cannot be removed stays.
#pragma once

#include <filesystem>

namespace terrace::store {

inline constexpr const char* kTemporarySuffix = ".temporary";
inline constexpr const char* kDataName = "data";
inline constexpr const char* kLockName = "lock";

void remove_dead_temporaries(const std::filesystem::path& beside);

}  // namespace terrace::store
