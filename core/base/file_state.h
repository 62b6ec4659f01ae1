// Tells whether an open file has been written to or replaced, and reads its bytes.
//
// Threads: any.
// Errors:  Error with errno and only the reason: the caller adds the path, what the file is for and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace::files {

// A write changes the times; another file of the same name has another inode number.
struct FileState {
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::int64_t written_ns = 0;  // the last write of its bytes
  std::int64_t changed_ns = 0;  // the last write, or change of its name, owner or permissions
  friend bool operator==(const FileState&, const FileState&) = default;
};
FileState state_of(int descriptor);

// Reads all of these bytes, in as many reads as the system makes of them, or throws.
void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> out);

}  // namespace terrace::files
