// A data file as a stream of bytes: those of the file, or what comes out if gzip or zstd has packed it, which its first bytes
// say and not its name. All members of gzip and frames of zstd are read, one behind the other.
//
// Memory:  what peek() is asked for, and of the file's bytes 256 KiB; zlib keeps 48 KiB and libzstd up to 128 MiB, however much
//          a file unpacks to.
// Owner:   the caller. Threads: one at a time.
// Errors:  Error(Exit::usage) for a file that is missing or not a regular file, and, with its name and the place in it, for
//          packed bytes that are damaged, end too early or have others behind them; Error(Exit::runtime) if reading fails.
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

  // The next bytes: `wanted` or more, or all that are left. They stay until the next call.
  [[nodiscard]] std::string_view peek(std::size_t wanted);
  // Returns false if the content ends before.
  bool skip(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t place() const { return place_; }  // of the next byte in the content
  [[nodiscard]] bool packed() const { return packing_ != nullptr; }
  // Of the file itself.
  [[nodiscard]] FileState state() const;
  [[nodiscard]] std::uint64_t file_bytes() const { return file_bytes_; }
  [[nodiscard]] std::uint64_t file_place() const { return packed() ? read_ - block_.size() : place_; }

 private:
  struct Packing;
  friend bool begins_packed(std::string_view bytes);
  [[nodiscard]] static const Packing* packing_of(std::string_view first);
  [[nodiscard]] std::string read(std::uint64_t bytes);  // the next ones of the file
  void fill(std::size_t wanted);
  void unpack(std::size_t wanted);
  [[nodiscard]] bool has_next_part();
  [[noreturn]] void fail(const std::string& what, const std::string& mend) const;

  std::filesystem::path path_;
  FileHandle file_;
  std::uint64_t file_bytes_ = 0, read_ = 0;
  const Packing* packing_ = nullptr;
  std::unique_ptr<Unpacker> unpacker_;
  std::string packed_;      // read, from which…
  std::string_view block_;  // …this is not unpacked yet
  bool within_ = false;     // a part
  std::string held_;        // content, from which `at_` bytes are behind the stream's place
  std::size_t at_ = 0;
  std::uint64_t place_ = 0;
};

bool is_packed(const std::filesystem::path& file);
bool begins_packed(std::string_view bytes);  // as what gzip or zstd writes
// "chat.jsonl" of "chat.jsonl.gz": the name without the ending of a packed file.
std::filesystem::path name_of_content(const std::filesystem::path& file);

}  // namespace terrace::lm
