// Locks an open file or folder against other processes (flock). A file system may have no locks: NFS without its lock daemon,
// some in user space. That is no reason to refuse work: what depends on the lock calls warn_without_locks().
//
// Owner:   the descriptor; its last copy ends the lock.
// Threads: any.
// Errors:  values; `impossible` leaves errno.
#pragma once

#include <sys/file.h>

#include <cstdint>
#include <filesystem>

namespace terrace {

enum class Locked : std::uint8_t { yes, by_another, impossible };
// Without waiting. `operation`: LOCK_EX or LOCK_SH.
Locked try_lock(int descriptor, int operation);
// Reads errno; warns once in a process.
void warn_without_locks(const std::filesystem::path& file);

}  // namespace terrace
