// The calls by which a store changes its files, and reads the small ones: the seam where tests inject faults and power losses.
//
// Every call returns what the kernel returns: a descriptor, a number of bytes or 0, or a negative errno. Chunk data are read
// and written through an IoEngine; these calls are for everything else.
//
// Owner:   shared by the stores that use it. Threads: any. Errors: none thrown; the caller, which knows the call's purpose,
//          reports them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace terrace::io {

class FileOps {
 public:
  virtual ~FileOps() = default;
  // Creates an empty file for writing. First removes a file of that name; follows no link.
  virtual int create(int directory, const std::string& name) = 0;
  virtual std::int64_t read(int file, std::span<std::byte> to) = 0;
  virtual std::int64_t write(int file, std::span<const std::byte> bytes) = 0;
  virtual int sync(int file) = 0;  // a file or a directory: everything written to it survives a power loss
  virtual int rename(int directory, const std::string& from, const std::string& to) = 0;
  virtual int remove(int directory, const std::string& name) = 0;
  virtual int allocate(int file, std::uint64_t bytes) = 0;  // reserves space for its first `bytes` bytes
  // btrfs bypasses the page cache only for a file without copy-on-write and checksums, and these can be switched off only while
  // the file is empty. Returns 0 if the file has neither, as on every other file system.
  virtual int switch_off_copy_on_write(int file) = 0;
};

// The kernel's calls.
std::shared_ptr<FileOps> make_file_ops();

// A call that has not ended after `deadline` returns -ETIME. The kernel's call cannot be cancelled: it runs on a separate
// thread, with its own descriptors, until it ends.
std::shared_ptr<FileOps> with_deadline(std::shared_ptr<FileOps> inner, std::chrono::nanoseconds deadline);

// Longer than the kernel's own timeout for a device (30 s and its retries), so that the kernel's errno is reported if there is
// one.
inline constexpr std::chrono::seconds kIoDeadline{120};

// Modes of a store's files, before the umask: the group may read the weights, other users may not.
inline constexpr unsigned kStoreDirectoryMode = 0750, kStoreFileMode = 0640;

}  // namespace terrace::io
