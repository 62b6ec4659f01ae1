// What the system says about direct I/O on one open file.
//
// Threads: any. Errors: none; a kernel or file system that does not tell gives nothing.
#pragma once

#include <cstdint>
#include <optional>

namespace terrace {

struct DirectIoRules {
  std::uint32_t memory_bytes = 0;  // what a buffer's address must be a multiple of; 0: no direct I/O on this file
  std::uint32_t offset_bytes = 0;  // and a request's offset and length
};
std::optional<DirectIoRules> direct_io_rules(int descriptor);  // statx, STATX_DIOALIGN: Linux 6.1

// Whether requests of whole pages keep the rules. A file that tells none is believed when it could be opened with O_DIRECT.
bool pages_suffice(const std::optional<DirectIoRules>& rules);

// Whether the file was opened with O_DIRECT and its drive has queues that are polled instead of interrupting (sysfs).
bool drive_can_be_polled(int descriptor);

}  // namespace terrace
