// Locks an open file or folder against other processes (flock). Some file systems have no locks: NFS without its lock daemon,
// some in user space. Work continues there: code that depends on the lock calls warn_without_locks().
//
// Owner:   the descriptor; its last copy ends the lock.
// Threads: any.
// Errors:  values; `impossible` leaves errno.
#pragma once

#include <sys/file.h>

#include <cstdint>
#include <filesystem>

#include <terrace/core/base/log.h>

namespace terrace::files {

enum class Locked : std::uint8_t { yes, by_another, impossible };
// Does not wait. `operation`: LOCK_EX or LOCK_SH.
Locked try_lock(int descriptor, int operation);
// Reads errno.
void warn_without_locks(const Log& log, const std::filesystem::path& file);

}  // namespace terrace::files
