// The system's rules for direct I/O on one open file.
//
// Threads: any. Errors: none; nullopt if the kernel or the file system does not report them.
#pragma once

#include <cstdint>
#include <optional>

#include <terrace/core/base/files.h>

namespace terrace::io {

struct DirectIoRules {
  std::uint32_t memory_bytes = 0;  // a buffer's address must be a multiple of this; 0: no direct I/O on this file
  std::uint32_t offset_bytes = 0;  // a request's offset and length must be multiples of this
};
std::optional<DirectIoRules> direct_io_rules(int descriptor);  // statx, STATX_DIOALIGN: Linux 6.1

// True if requests of whole pages follow the rules. A file without reported rules is accepted if it was opened with O_DIRECT.
bool pages_suffice(const std::optional<DirectIoRules>& rules);

// Opens an open file again with the same access: with direct I/O in whole pages, or through the page cache if direct I/O is
// refused. Empty if the file cannot be opened again at all (there is no /proc).
files::FileHandle open_again_direct(int descriptor);

// True if the file was opened with O_DIRECT and its drive has queues that are polled instead of interrupting (sysfs).
bool drive_can_be_polled(int descriptor);

}  // namespace terrace::io
