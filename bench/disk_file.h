// The file that a disk benchmark reads and writes: new, of mode 0600, reserved, and without a name wherever the file system
// permits it, so that it is gone with the process, however that ends.
//
// Owner:   the caller. Threads: any; the descriptor is shared.
// Errors:  Error(Exit::usage) for anything that is not a directory (an existing file and a device are never touched);
//          Error(Exit::does_not_fit) when the disk has no room; Error for the rest.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace terrace::bench {

// Throws unless `path` is a directory in which a file can be created.
void demand_directory(const std::filesystem::path& path);

// Waits until the disk has done what removing files left to do: their space is given back to the disk with the file system's
// next commit, and in the background after it, and would take that time from whatever is timed then. So this commits, and then
// waits until the disk has had nothing to do for 100 ms; 20 s at most, because others may use the disk.
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
  void forget_cache() const;  // the next reads come from the disk, also without direct I/O

 private:
  void open(const std::filesystem::path& directory);
  void reserve(const std::filesystem::path& directory) const;

  const std::uint64_t bytes_;
  int descriptor_ = -1;
  bool direct_ = true;
  std::uint64_t alignment_bytes_ = 4096;
};

}  // namespace terrace::bench
