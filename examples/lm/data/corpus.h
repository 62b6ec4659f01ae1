// Files as one sequence of tokens, and the order in which training sequences are drawn from it. A token is a byte (vocabulary
// 256), or a little-endian number of two or four bytes. Files in llm.c's format have a header, which is skipped.
//
// Files are read through a few windows of bounded size and are never loaded whole; no file stays open. A file must stay as it
// was when the corpus was opened: its size and time of writing are compared at each read, and a window that is read again must
// have the bytes of the first time.
//
// Owner:   the caller.
// Threads: a Corpus from one thread at a time; a SequencePlan is a value.
// Errors:  Error(ErrorKind::refused) for a file that is missing, not a file, or unreadable, or that ends within a token, and
//          for a corpus that is empty or shorter than one training and one evaluation sequence; Error(ErrorKind::failed) if a
//          later read fails, if a file has changed, and for a token outside the vocabulary, which TokenScan would have found
//          before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <list>
#include <span>
#include <string_view>
#include <vector>

#include <terrace/core/base/file_state.h>

namespace terrace::lm {

inline constexpr std::int64_t kByteVocabulary = 256;
inline constexpr std::uint32_t kLlmCMagic = 20240520;  // the first number of llm.c's token files

struct TokenFormat {
  std::size_t bytes = 1;                      // of a token: 1, 2 or 4
  std::int64_t vocabulary = kByteVocabulary;  // every token is less than this
  std::size_t header = 0;                     // bytes before the tokens: the size of llm.c's header, or 0
};
TokenFormat token_format(std::string_view name, std::int64_t vocabulary);  // "bytes", "u16", "u32", "llm.c"
// The number of tokens in a file. Error(ErrorKind::refused) if the file ends within a token or has another header than the
// format says.
std::uint64_t tokens_in_file(const std::filesystem::path& file, TokenFormat format);

struct CorpusWindows {
  std::size_t bytes = std::size_t{1} << 20;  // of one window
  std::size_t count = 4;                     // windows kept; the least recently used one is replaced
  // Slots for checksums of windows, 16 bytes each. If there are more windows than slots, windows share them, and a slot has the
  // checksum of its window that was read last.
  std::size_t checked = std::size_t{1} << 16;
};

class Corpus {
 public:
  // The files in the given order, concatenated without separators.
  static Corpus open(const std::vector<std::filesystem::path>& files, CorpusWindows windows = {}, TokenFormat format = {});

  [[nodiscard]] std::uint64_t tokens() const { return tokens_; }
  // out[i] = token first + i.
  void read(std::uint64_t first, std::span<std::int32_t> out);
  // Row r of `tokens` and of `targets` (both starts.size() × seq_len): tokens from starts[r], and from starts[r] + 1.
  void fill(std::span<const std::uint64_t> starts, std::uint64_t seq_len, std::span<std::int32_t> tokens,
            std::span<std::int32_t> targets);

  [[nodiscard]] std::size_t held_bytes() const;  // of all windows

 private:
  struct File {
    std::filesystem::path path;
    std::uint64_t first = 0, tokens = 0;  // first token, in the whole corpus
    files::FileState state;               // when the corpus was opened
    std::uint64_t first_window = 0;       // number of its first window in the whole corpus
  };
  struct Window {
    std::size_t file = 0;
    std::uint64_t index = 0;
    std::vector<unsigned char> bytes;
  };
  struct Checked {
    std::uint64_t window = ~std::uint64_t{0}, checksum = 0;
  };
  Corpus(std::vector<File> files, std::uint64_t tokens, CorpusWindows windows, TokenFormat format);
  const Window& window(std::size_t file, std::uint64_t index);
  void demand_same_bytes(const Window& window);

  std::vector<File> files_;  // empty files are left out
  std::uint64_t tokens_ = 0;
  CorpusWindows limits_;
  TokenFormat format_;
  std::list<Window> windows_;     // most recently used first
  std::vector<Checked> checked_;  // the slot of a window is its number modulo the size
};

// Splits the tokens into a training and an evaluation part: the last 5 %, at least one sequence, are held out, or no tokens at
// all. Both parts are cut into sequences of seq_len inputs and one more token, the last target; it is also the first input of
// the next sequence.
struct SequencePlan {
  std::uint64_t seq_len = 0;
  std::uint64_t training_sequences = 0;
  std::uint64_t evaluation_begin = 0, evaluation_sequences = 0;

  // The first token of training sequence `global_index` = step · batch + row. Each epoch visits every sequence once, in an
  // order that depends only on (seed, epoch). So the data does not depend on how a batch is divided.
  [[nodiscard]] std::uint64_t sequence_start(std::uint64_t seed, std::uint64_t global_index) const;
  // The first token of evaluation sequence i, in order.
  [[nodiscard]] std::uint64_t evaluation_start(std::uint64_t i) const;
};
SequencePlan plan_sequences(std::uint64_t corpus_tokens, std::uint64_t seq_len, bool holds_out = true);

// The position of `index` in the permutation of [0, count) for (seed, epoch), computed without a table.
std::uint64_t permuted(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count);

}  // namespace terrace::lm
