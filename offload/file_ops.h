// The calls by which a store changes its files, and reads the small ones: the seam where tests inject faults and power losses.
//
// Every call returns what the kernel returns: a descriptor, a number of bytes or 0, or a negative errno. Chunk data are read
// and written through an IoEngine; these calls are for everything else.
//
// Owner:   shared by the stores that use it. Threads: any. Errors: none thrown; the caller knows what the call was for.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace terrace {

class FileOps {
 public:
  virtual ~FileOps() = default;
  // Empty, for writing. Removes a file of that name, and follows no link.
  virtual int create(int directory, const std::string& name) = 0;
  virtual std::int64_t read(int file, std::span<std::byte> to) = 0;
  virtual std::int64_t write(int file, std::span<const std::byte> bytes) = 0;
  virtual int sync(int file) = 0;  // a file or a directory: everything written to it survives a power loss
  virtual int rename(int directory, const std::string& from, const std::string& to) = 0;
  virtual int remove(int directory, const std::string& name) = 0;
  virtual int allocate(int file, std::uint64_t bytes) = 0;  // space for all of its first bytes
  // btrfs writes a file past the page cache only if the file has neither copy-on-write nor checksums, which can be chosen only
  // while it is empty. 0 if it has none, as on every other file system.
  virtual int switch_off_copy_on_write(int file) = 0;
};

// The kernel's calls.
std::shared_ptr<FileOps> make_file_ops();

// A call that has not ended after `deadline` returns -ETIME. The kernel's call cannot be cancelled: it runs on a separate
// thread with its own descriptors, which waits until it ends.
std::shared_ptr<FileOps> with_deadline(std::shared_ptr<FileOps> inner, std::chrono::nanoseconds deadline);

// Longer than the kernel's own timeout for a device (30 s and its retries), so that the kernel's errno is reported if there is
// one.
inline constexpr std::chrono::seconds kIoDeadline{120};

// The modes of all files of a store, of which the umask takes more away: the group may read the weights, other users may not.
inline constexpr unsigned kStoreDirectoryMode = 0750, kStoreFileMode = 0640;

}  // namespace terrace
