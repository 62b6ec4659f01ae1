// What an open file is and holds: by what it is known not to have been written to or replaced, and its bytes.
//
// Threads: any.
// Errors:  Error with only the reason: the caller adds what the file is for and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// A write changes the times, and another file of the name has another number.
struct FileState {
  std::uint64_t device = 0, inode = 0, bytes = 0;
  std::int64_t written_ns = 0, changed_ns = 0;  // of its bytes; of these, or its name, owner, permissions
  friend bool operator==(const FileState&, const FileState&) = default;
};
FileState state_of(int descriptor);

// Reads all of these bytes, in as many reads as the system makes of them, or throws.
void read_all(int descriptor, std::uint64_t offset, std::span<std::byte> out);

}  // namespace terrace
