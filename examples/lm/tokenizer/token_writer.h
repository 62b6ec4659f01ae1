// Files of token ids as programs for training read them:
//
//   u16, u32  ids only, little-endian (nanoGPT; `terrace train --data-format u16`)
//   llm.c     ids of two bytes after a header of 1024 bytes: 20240520, version 1, number of ids
//   megatron  ids only in NAME.bin, of two or four bytes, and where documents begin in NAME.idx
//
// The files have names of their own until finish(), and are locked: two processes cannot write the same ones. place() says how
// far the files are, and a later writer goes on from there.
//
// Owner:   the job. Threads: one at a time.
// Errors:  Error(Exit::runtime) if writing fails, or another process writes; Error(Exit::usage) for more ids than a format can
//          count, and where something else than a file of an earlier writer has such a name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/core/base/files.h>
#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

enum class TokenFile : std::uint8_t { u16, u32, llm_c, megatron };
std::string_view name_of(TokenFile kind);

struct WriterPlace {
  std::uint64_t tokens = 0, documents = 0;
  std::uint64_t open_tokens = 0;  // of the document that is not complete
};

class TokenWriter {
 public:
  // `ids`: the largest id + 1, which decides how many bytes an id has with `megatron`.
  TokenWriter(std::filesystem::path out, TokenFile kind, std::size_t ids, WriterPlace from);

  // `ends`: after how many of these ids a document ends, ascending.
  void write(std::span<const TokenId> ids, std::span<const std::size_t> ends);
  [[nodiscard]] WriterPlace place() const { return place_; }
  void sync();    // what was written survives a power loss
  void finish();  // gives the files their names

  // NAME.partial, and with `megatron` NAME.sizes.partial and NAME.idx.tmp.
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
  FileHandle ids_file_, sizes_file_;
  std::string buffer_;
};

}  // namespace terrace::lm
