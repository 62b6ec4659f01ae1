// The calls by which a store changes its files: the seam where tests put faults in, and take the power away.
//
// Every call gives what the kernel gives: a descriptor, a number of bytes or 0, or a negative errno. Data are read and written
// through an IoEngine; this is for all the rest.
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
  virtual int create(int directory, const std::string& name) = 0;  // empty, for writing
  virtual std::int64_t write(int file, std::span<const std::byte> bytes) = 0;
  virtual int sync(int file) = 0;  // of a file or of a directory: what was written to it survives a power loss
  virtual int rename(int directory, const std::string& from, const std::string& to) = 0;
  virtual int remove(int directory, const std::string& name) = 0;
  virtual int allocate(int file, std::uint64_t bytes) = 0;  // space for all of its first bytes
};

// The kernel's.
std::shared_ptr<FileOps> make_file_ops();

// A call that has not ended after `deadline` gives -ETIME. The call itself cannot be taken back: a thread of its own, with
// descriptors of its own, stays with it for as long as it takes.
std::shared_ptr<FileOps> with_deadline(std::shared_ptr<FileOps> inner, std::chrono::nanoseconds deadline);

// Above what the kernel itself takes to give up on a device (30 s and its retries), so that its errno is told where it has one.
inline constexpr std::chrono::seconds kIoDeadline{120};

// The modes and flags of all that belongs to a store: weights are nobody else's business, and no link is followed.
inline constexpr unsigned kStoreDirectoryMode = 0700, kStoreFileMode = 0600;

}  // namespace terrace
