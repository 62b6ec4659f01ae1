// What is made of data files once and kept in the user's cache, for all ranks and later starts: a file is named by all that
// decides its bytes, so another text, tokenizer or setting is another file. The folder may be removed.
//
// Threads: any; processes wait for each other.
// Errors:  Error with the file where one cannot be read or written.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/core/files.h>

namespace terrace::cli {

class CachedFile {
 public:
  // Of what `data` becomes; `decides`: all else that decides its bytes. Its folder is made.
  CachedFile(std::filesystem::path data, std::string decides, std::string ending);
  // "book-0123456789abcdef.u16" in the user's cache.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Held while the file is made. A process that is killed leaves a lock that nobody has.
  [[nodiscard]] FileHandle lock() const;
  // When it has been made: the data must have the bytes that named the file. Otherwise it is removed, and Error.
  void demand_same_data() const;

 private:
  [[nodiscard]] std::filesystem::path path_now() const;

  std::filesystem::path data_;
  std::string decides_, ending_;
  std::filesystem::path path_;
};

// Says how far the making is, every five seconds: "tokenizing book.txt: 1.00 GiB of 4.00 GiB".
class MakingNote {
 public:
  MakingNote(std::string_view what, const std::filesystem::path& data);
  // Returns whether it has said so.
  bool operator()(std::uint64_t done, std::uint64_t of);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point said_;
};

}  // namespace terrace::cli
