// The input of `terrace tokenize` in pieces of bounded size. A file is either one document of text, or has one JSON object per
// line, each a document. The cuts between pieces depend only on the bytes of the files. From the creation of the source until
// its last piece has been read, a file must not change.
//
// Owner:   the job. Threads: next() from one at a time.
// Errors:  those of DataStream; Error(ErrorKind::refused) for a line, or a text that cannot be cut, of more than
//          kMostPieceBytes; Error(ErrorKind::failed) for a file that has changed.
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
  bool lines = false;                                 // JSON lines; false: text
  bool begins_document = true, ends_document = true;  // for text
};

class PieceSource {
 public:
  // The last place at or before `most` where a text can be cut; nothing if there is none.
  using Cut = std::function<std::optional<std::size_t>(std::string_view text, std::size_t most)>;

  PieceSource(std::vector<std::filesystem::path> files, std::uint64_t piece_bytes, Cut cut);

  // Returns the piece that begins at `place`, and moves `place` past it. Nothing at the end.
  std::optional<Piece> next(InputPlace& place);
  // Calls `take` with the texts of a piece: the whole piece, or for each line the value of `field`. Throws
  // Error(ErrorKind::refused) with the place of a line that is not an object with this text. May be called from any thread.
  void each_text(const Piece& piece, const std::string& field, const std::function<void(std::string_view)>& take) const;
  [[nodiscard]] bool has(InputPlace place);                          // whether this place exists in a file, or is the end
  [[nodiscard]] std::uint64_t bytes() const;                         // of all files
  [[nodiscard]] std::uint64_t bytes_before(InputPlace place) const;  // bytes of the input before `place`
  [[nodiscard]] const std::filesystem::path& path(std::uint64_t file) const { return files_[file].path; }
  [[nodiscard]] std::string described() const;  // names, sizes and times; a later run with the same text has the same input

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0;
    std::int64_t written_ns = 0;
    bool packed = false;
  };
  bool go_to(InputPlace place);   // opens the file at `place`; false: it is shorter
  void demand_unchanged() const;  // checks the open file
  [[nodiscard]] std::size_t end_of_piece(std::string_view window, bool lines) const;

  std::vector<File> files_;
  std::uint64_t piece_bytes_;
  Cut cut_;
  std::optional<DataStream> open_;
  std::uint64_t open_file_ = ~std::uint64_t{0};
};

}  // namespace terrace::lm
