// Writes token ids in the file formats of training programs:
//
//   u16, u32  ids only, little-endian (nanoGPT; `terrace train --data-format u16`)
//   llm.c     ids of two bytes after a header of 1024 bytes: 20240520, version 1, number of ids
//   megatron  only ids in NAME.bin, of two or four bytes; the beginnings of documents in NAME.idx
//
// Until finish(), the files have temporary names and are locked, so two processes cannot write the same ones. place() tells how
// far they are written; a later writer can continue from there.
//
// Owner:   the job. Threads: one at a time.
// Errors:  Error(ErrorKind::failed) if writing fails or another process writes; Error(ErrorKind::refused) for more ids than the
//          format can count, and if another kind of file has one of the names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/files.h>
#include <terrace/core/base/log.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

enum class TokenFile : std::uint8_t { u16, u32, llm_c, megatron };
std::string_view name_of(TokenFile kind);

struct WriterPlace {
  std::uint64_t tokens = 0, documents = 0;
  std::uint64_t open_tokens = 0;  // of the incomplete document
};

class TokenWriter {
 public:
  // `ids`: the largest id + 1; for `megatron`, it decides the size of an id.
  TokenWriter(std::filesystem::path out, TokenFile kind, std::size_t ids, WriterPlace from, const Log& log = {});

  // `ends`: ascending indexes in `ids` after which a document ends.
  void write(std::span<const TokenId> ids, std::span<const std::size_t> ends);
  [[nodiscard]] WriterPlace place() const { return place_; }
  void sync();    // after this, a power loss cannot lose what was written
  void finish();  // gives the files their names

  // NAME.partial and, for `megatron`, NAME.sizes.partial and NAME.idx.tmp.
  static std::vector<std::filesystem::path> unfinished_files(const std::filesystem::path& out, TokenFile kind);

 private:
  [[nodiscard]] std::filesystem::path partial() const;
  [[nodiscard]] std::filesystem::path sizes() const;
  void write_ends(std::size_t ids, std::span<const std::size_t> ends);
  void write_index() const;

  std::filesystem::path out_;
  TokenFile kind_;
  std::size_t width_;
  WriterPlace place_;
  files::FileHandle ids_file_, sizes_file_;
  std::string buffer_;
};

}  // namespace terrace::lm
