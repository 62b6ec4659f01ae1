// One file of corpus tokens, open for random reads.
//
// Internal to examples/lm. Owner: the caller. Threads: read() from any thread.
// Errors:  Error(ErrorKind::refused) from state() for a file that is missing, unreadable or not a regular file;
//          Error(ErrorKind::failed) from read() if reading fails, or if the file has become shorter, and from
//          demand_unchanged().
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include <terrace/core/base/error.h>
#include <terrace/core/base/file_state.h>
#include <terrace/core/base/files.h>

namespace terrace::lm {

class CorpusFile {
 public:
  explicit CorpusFile(std::filesystem::path path);  // does not throw if opening fails; the other functions do

  [[nodiscard]] files::FileState state() const;  // throws unless it is a regular file
  [[nodiscard]] std::uint64_t bytes() const { return state().bytes; }
  // Throws if the file was written after `since` was taken. Compares size and modification time only, because some file systems
  // give the file another inode number each time.
  void demand_unchanged(const files::FileState& since) const;
  void read(std::uint64_t offset, std::span<unsigned char> out) const;  // fills all of `out`
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;      // a hint: the kernel starts to read ahead
  void has_read(std::uint64_t offset, std::uint64_t bytes) const;       // a hint: the kernel may drop these pages

 private:
  [[noreturn]] void fail_read(std::uint64_t offset, std::uint64_t bytes, const Error& why) const;
  [[noreturn]] void fail_changed(const std::string& how) const;

  std::filesystem::path path_;
  files::FileHandle file_;
  std::optional<Error> why_;  // why opening failed
};

}  // namespace terrace::lm
