// Files that are made from data files once and kept in the user's cache, for all ranks and later starts. A file's name depends
// on everything that decides its bytes, so another text, tokenizer or setting has another file. The folder may be removed.
//
// Threads: any; processes wait for each other.
// Errors:  Error with the file where one cannot be read or written.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <terrace/core/base/files.h>

namespace terrace::cli {

class CachedFile {
 public:
  // The file that is made from `data`. `decides`: everything else that decides its bytes. Makes the folder.
  CachedFile(std::filesystem::path data, std::string decides, std::string ending);
  // "book-0123456789abcdef.u16" in the user's cache.
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Held while the file is made. If the process is killed, the lock is free, and only its file stays.
  [[nodiscard]] files::FileHandle lock() const;
  // Called when the file has been made. If the data no longer has the bytes that named the file, removes the file and throws.
  void demand_same_data() const;

 private:
  [[nodiscard]] std::filesystem::path path_now() const;

  std::filesystem::path data_;
  std::string decides_, ending_;
  std::filesystem::path path_;
};

// Prints the progress every five seconds: "tokenizing book.txt: 1.00 GiB of 4.00 GiB".
class MakingNote {
 public:
  MakingNote(std::string_view what, const std::filesystem::path& data);
  // Returns whether it has printed a line.
  bool operator()(std::uint64_t done, std::uint64_t of);

 private:
  std::string what_;
  std::chrono::steady_clock::time_point said_;
};

}  // namespace terrace::cli
