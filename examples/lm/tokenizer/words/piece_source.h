// The input of `terrace tokenize` in pieces of bounded size: files of text, each one document, or of JSON objects, one in a
// line and each one document. Where pieces begin and end depends on the bytes of the files only. A file must stay as it was
// when the source was made until its last piece has been read.
//
// Owner:   the job. Threads: next() from one at a time.
// Errors:  those of DataStream; Error(Exit::usage) for a line, or a text that cannot be cut, of more than kMostPieceBytes;
//          Error(Exit::runtime) for a file that has changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/unpack/data_stream.h>

namespace terrace::lm {

inline constexpr std::uint64_t kMostPieceBytes = std::uint64_t{256} << 20;

struct InputPlace {
  std::uint64_t file = 0, offset = 0;
};

struct Piece {
  std::string bytes;
  InputPlace begin;
  bool lines = false;                                 // of JSON; else text
  bool begins_document = true, ends_document = true;  // of a text
};

class PieceSource {
 public:
  // Where a text may be cut, at or before a place; nothing if it may not.
  using Cut = std::function<std::optional<std::size_t>(std::string_view text, std::size_t most)>;

  PieceSource(std::vector<std::filesystem::path> files, std::uint64_t piece_bytes, Cut cut);

  // The piece that begins at `place`, which moves behind it. Nothing at the end.
  std::optional<Piece> next(InputPlace& place);
  // The texts of a piece: all of it, or of each line's object the one with that name. Error(Exit::usage) with the place of a
  // line that is no such object. From any thread.
  void each_text(const Piece& piece, const std::string& field, const std::function<void(std::string_view)>& take) const;
  [[nodiscard]] bool has(InputPlace place);                          // in a file, or the end
  [[nodiscard]] std::uint64_t bytes() const;                         // of all files
  [[nodiscard]] std::uint64_t bytes_before(InputPlace place) const;  // of the files, before the last piece's end
  [[nodiscard]] const std::filesystem::path& path(std::uint64_t file) const { return files_[file].path; }
  [[nodiscard]] std::string described() const;  // names, sizes and times, by which a later run knows the same input

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0;
    std::int64_t written_ns = 0;
    bool packed = false;
  };
  bool go_to(InputPlace place);   // of a file; false: it ends before
  void demand_unchanged() const;  // the open file
  [[nodiscard]] std::size_t end_of_piece(std::string_view window, bool lines) const;

  std::vector<File> files_;
  std::uint64_t piece_bytes_;
  Cut cut_;
  std::optional<DataStream> open_;
  std::uint64_t open_file_ = ~std::uint64_t{0};
};

}  // namespace terrace::lm
