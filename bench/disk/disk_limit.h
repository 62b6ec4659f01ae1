// The shortest time in which a disk can read the given ranges and at the same time write a given number of bytes to a new file:
// the I/O engine alone, with deep queues and without the page cache. The file is reserved, synced and removed.
//
// Owner:   the caller. Threads: one. Errors: Error that names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace terrace::bench {

struct FileRange {
  std::filesystem::path file;
  std::uint64_t offset = 0, bytes = 0;  // whole pages
};
double disk_seconds(const std::vector<FileRange>& reads, const std::filesystem::path& folder, std::uint64_t written_bytes);

}  // namespace terrace::bench
