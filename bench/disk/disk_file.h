// The file that a disk benchmark reads and writes: new, with mode 0600, and reserved. If the file system permits it, the file
// has no name, so that it disappears with the process, however that ends.
//
// Owner:   the caller. Threads: any; the descriptor is shared.
// Errors:  Error(ErrorKind::refused) for anything that is not a directory (an existing file and a device are never touched);
//          Error(ErrorKind::does_not_fit) when the disk has no room; Error for the rest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::bench {

// Throws unless `path` is a directory in which a file can be created.
void demand_directory(const std::filesystem::path& path);

// Waits until the disk has finished the work that removed files leave behind: the file system returns their space to the disk
// with its next commit and in the background after it, which would slow down whatever is timed then. So this commits, and then
// waits until the disk has been idle for 100 ms; at most 20 s, because others may use the disk.
void settle(const std::filesystem::path& folder);

class DiskFile {
 public:
  DiskFile(const std::filesystem::path& directory, std::uint64_t bytes);
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  [[nodiscard]] int descriptor() const { return descriptor_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool direct() const { return direct_; }                             // false: through the page cache
  [[nodiscard]] std::uint64_t alignment_bytes() const { return alignment_bytes_; }  // of offsets, for direct I/O
  void sync() const;
  void forget_cache() const;  // the next reads come from the disk, even without direct I/O

 private:
  void open(const std::filesystem::path& directory);
  void reserve(const std::filesystem::path& directory) const;

  const std::uint64_t bytes_;
  int descriptor_ = -1;
  bool direct_ = true;
  std::uint64_t alignment_bytes_ = 4096;
};

}  // namespace terrace::bench
