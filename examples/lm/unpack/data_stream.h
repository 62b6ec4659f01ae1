// A data file as a stream of bytes: the file itself, or its unpacked content if gzip or zstd has packed it. The first bytes
// decide, not the name. All members of a gzip file and all frames of a zstd file are read, one after the other.
//
// Memory:  what peek() asks for, and 256 KiB of the file's bytes; zlib keeps 48 KiB and libzstd up to 128 MiB, however much a
//          file unpacks to.
// Owner:   the caller. Threads: one at a time.
// Errors:  Error(ErrorKind::refused) for a file that is missing or not a regular file, and, with its name and the offset, for
//          packed bytes that are damaged, incomplete or followed by other bytes; Error(ErrorKind::failed) if reading fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <terrace/core/base/file_state.h>
#include <terrace/core/base/files.h>
#include <terrace/examples/lm/unpack/unpacker.h>

namespace terrace::lm {

class DataStream {
 public:
  explicit DataStream(std::filesystem::path path);
  DataStream(DataStream&&) = delete;

  // The next bytes: at least `wanted`, or all that are left. The view is valid until the next call.
  [[nodiscard]] std::string_view peek(std::size_t wanted);
  // Returns false if the content ends before that.
  bool skip(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t place() const { return place_; }  // of the next byte in the content
  [[nodiscard]] bool packed() const { return packing_ != nullptr; }
  // The file itself, not its content.
  [[nodiscard]] files::FileState state() const;
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t file_place() const { return packed() ? read_ - block_.size() : place_; }

 private:
  struct Packing;
  friend bool begins_packed(std::string_view bytes);
  [[nodiscard]] static const Packing* packing_of(std::string_view first);
  [[nodiscard]] std::string read(std::uint64_t bytes);  // the next bytes of the file
  void fill(std::size_t wanted);
  void unpack(std::size_t wanted);
  [[nodiscard]] bool has_next_part();
  [[noreturn]] void fail(const std::string& what, const std::string& mend) const;

  std::filesystem::path path_;
  files::FileHandle file_;
  std::uint64_t file_bytes_ = 0, read_ = 0;
  const Packing* packing_ = nullptr;
  std::unique_ptr<Unpacker> unpacker_;
  std::string packed_;      // packed bytes that were read
  std::string_view block_;  // the rest of packed_ that is not unpacked yet
  bool within_ = false;     // inside a part
  std::string held_;        // content; its first `at_` bytes were already passed
  std::size_t at_ = 0;
  std::uint64_t place_ = 0;
};

bool is_packed(const std::filesystem::path& file);
bool begins_packed(std::string_view bytes);  // true for the first bytes of a gzip or zstd file
// "chat.jsonl.gz" → "chat.jsonl": removes the ending of a packed file.
std::filesystem::path name_of_content(const std::filesystem::path& file);

}  // namespace terrace::lm
