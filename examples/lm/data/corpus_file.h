// A file with the tokens of a corpus, open for reading at any place.
//
// Internal to examples/lm. Owner: the caller. Threads: read() from any thread.
// Errors:  Error(Exit::usage) from state() for a file that is missing, unreadable or not a regular file;
//          Error(Exit::runtime) from read() if reading fails, or if the file has become shorter, and from demand_unchanged().
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/core/base/file_state.h>
#include <terrace/core/base/files.h>

namespace terrace::lm {

class CorpusFile {
 public:
  explicit CorpusFile(std::filesystem::path path);  // errors come from the other functions

  [[nodiscard]] FileState state() const;  // of a regular file
  [[nodiscard]] std::uint64_t bytes() const { return state().bytes; }
  // Its bytes must not have been written since it had that state. Other states of equal size and time of writing are accepted,
  // because some file systems give a file another number each time.
  void demand_unchanged(const FileState& since) const;
  void read(std::uint64_t offset, std::span<unsigned char> out) const;  // all of it
  void will_read(std::uint64_t offset, std::uint64_t bytes) const;      // a hint: the kernel begins to read
  void has_read(std::uint64_t offset, std::uint64_t bytes) const;       // a hint: the kernel need not keep these pages

 private:
  [[noreturn]] void fail_read(std::uint64_t offset, std::uint64_t bytes, const std::string& why) const;

  std::filesystem::path path_;
  FileHandle file_;
  std::string why_;  // it could not be opened
};

}  // namespace terrace::lm
