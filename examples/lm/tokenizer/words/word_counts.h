// Counts the words of files, cut by a pattern, to train a vocabulary. Memory is bounded: if the words exceed it, the rarest
// words so far are dropped. The result depends only on the input, not on the number of threads.
//
// Owner:   the caller. Threads: one; the threads of the pool count. Errors: what PieceSource and text_of_line() throw.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/core/device/thread_pool.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>

namespace terrace::lm {

struct CountSettings {
  std::vector<std::filesystem::path> inputs;  // as in TokenizeSettings
  std::string field = "text";
  Pattern pattern = Pattern::llama3;
  std::uint64_t most_bytes = std::uint64_t{2} << 30;  // for all counted words
  std::uint64_t piece_bytes = std::uint64_t{1} << 20;
};

struct WordCounts {
  std::vector<std::pair<std::string, std::uint64_t>> words;  // sorted
  std::uint64_t most_missed = 0;  // a count may be too low by this much, or a word with at most this count may be missing
};

// `progress` receives the bytes read so far and the bytes of all files. If it returns false, the function throws
// Error(ErrorKind::interrupted).
WordCounts count_words(const CountSettings& settings, ThreadPool& pool,
                       const std::function<bool(std::uint64_t, std::uint64_t)>& progress);

}  // namespace terrace::lm
