// Looks for tokens outside the vocabulary in all files of a corpus, before a run begins, and makes the files' checksums.
//
// Every file is read once, in large blocks, as fast as the disk reads them. Several processes can divide the work: each reads
// every n-th block. Nothing is read if each number of the format is a token.
//
// Owner:   the caller.
// Threads: one at a time.
// Errors:  Error(Exit::usage) from advance() with the file, the token's position, its value and the vocabulary, for the first
// one
//          in this part of the work; what CorpusFile throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/lm/data/corpus_file.h>

namespace terrace::lm {

struct ScanPart {
  std::uint64_t index = 0, of = 1;
};

class TokenScan {
 public:
  static constexpr std::size_t kBlockBytes = std::size_t{8} << 20;

  TokenScan(const std::vector<std::filesystem::path>& files, TokenFormat format, ScanPart part = {},
            std::size_t block_bytes = kBlockBytes);

  // Reads on for about so long, at least a block. Returns whether this part is done.
  bool advance(std::chrono::nanoseconds time);
  [[nodiscard]] double share_done() const;                      // from 0 to 1
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // of all files; 0 if none is read
  // Of each file, this part's share of its checksum: those of all parts add up to it. Empty if nothing is read.
  [[nodiscard]] const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0, first_block = 0;
    std::size_t number = 0;  // of all files, empty ones too
  };
  void check(std::uint64_t block);

  TokenFormat format_;
  ScanPart part_;
  std::size_t block_bytes_;
  std::vector<File> files_;
  std::uint64_t bytes_ = 0, blocks_ = 0, next_ = 0;  // of all files
  std::unique_ptr<CorpusFile> open_;
  std::size_t open_index_ = 0;
  std::vector<unsigned char> block_;
  std::vector<std::uint64_t> checksums_;
};

// "corpus file c.u16, token 7: 60000 is not below the vocabulary of 300"
std::string describe_foreign_token(const std::filesystem::path& file, std::uint64_t position, std::uint64_t token,
                                   std::int64_t vocabulary);

}  // namespace terrace::lm
