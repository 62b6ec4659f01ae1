// Looks for tokens outside the vocabulary in all files of a corpus, before a run begins, and makes the files' checksums.
//
// Every file is read once, in large blocks, at the speed of the disk. Several processes can divide the work: each reads every
// n-th block. Nothing is read if every number of the format is a valid token.
//
// Owner:   the caller.
// Threads: one at a time.
// Errors:  Error(ErrorKind::refused) from advance() for the first invalid token in this part of the work, with the file, the
//          token's position, its value and the vocabulary; the errors of CorpusFile.
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

  // Reads on for about this time, but at least one block. Returns true if this part is finished.
  bool advance(std::chrono::nanoseconds time);
  [[nodiscard]] double share_done() const;                      // from 0 to 1
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }  // of all files; 0 if nothing needs to be read
  // For each file, the sum of this part's block checksums; the sum over all parts is the file's checksum. Empty if nothing is
  // read.
  [[nodiscard]] const std::vector<std::uint64_t>& checksums() const { return checksums_; }

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t bytes = 0, first_block = 0;
    std::size_t number = 0;  // index among all files, including empty ones
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
