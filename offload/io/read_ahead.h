// Reads announced ranges of files ahead, past the page cache: several requests in flight, through a ring of 32 MiB.
//
// The caller announces ranges in the order in which it will read them, and then reads each of their bytes once. The caller
// itself reads ranges that were not announced or could not be read, and the last, partial page of a file; its own call then
// reports errors. The ring and its thread exist only while announced bytes are outstanding.
//
// Owner:   the caller. The descriptors are opened once more, and may be closed afterwards.
// Threads: announce() from one thread at a time; read() from any.
// Errors:  none; without memory or a thread, nothing is read ahead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <terrace/offload/io/io_choice.h>

namespace terrace::io {

class ReadAhead {
 public:
  explicit ReadAhead(std::span<const int> files, const IoChoice& choice = {});
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  void announce(std::size_t file, std::uint64_t offset, std::uint64_t bytes);
  // Returns how many leading bytes of `to` were filled; the caller reads the others.
  std::size_t read(std::size_t file, std::uint64_t offset, std::span<std::byte> to);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::io
