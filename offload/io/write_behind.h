// Writes the bytes of a new file past the page cache while the caller makes the next ones: several requests in flight, from a
// ring of 64 MiB.
//
// Each byte is written once, in any order; adjacent bytes that arrive one after the other go to the disk together, in whole
// pages. A partial page at either end of such a row goes through the page cache, so the file is complete only after the
// caller's fsync.
//
// Owner:   the caller. The descriptor must stay open, and this object alive, until the fsync has returned.
// Threads: one at a time.
// Errors:  write() and drain() report the first request that failed, even one of an earlier call; the file is lost then. The
//          constructor's are those of IoThread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include <terrace/offload/io/io_choice.h>

namespace terrace::io {

class WriteBehind {
 public:
  struct Failure {
    int error_number = 0;
    std::uint64_t offset = 0, bytes = 0;
  };
  explicit WriteBehind(int file, const IoChoice& choice = {});
  ~WriteBehind();
  WriteBehind(const WriteBehind&) = delete;
  WriteBehind& operator=(const WriteBehind&) = delete;

  [[nodiscard]] std::optional<Failure> write(std::uint64_t offset, std::span<const std::byte> bytes);
  // Avoids a copy: calls `fill` with pieces, in order, of the memory from which the file's bytes are written.
  using Fill = std::function<void(std::span<std::byte> piece)>;
  [[nodiscard]] std::optional<Failure> write(std::uint64_t offset, std::uint64_t bytes, const Fill& fill);
  [[nodiscard]] std::optional<Failure> drain();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace::io
