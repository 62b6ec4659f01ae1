// How often each word of a pattern stands in files, for training a vocabulary. Memory is bounded: if the words exceed it, the
// rarest ones so far are dropped. What is dropped depends on the input only, not on the number of threads.
//
// Owner:   the caller. Threads: one; the pool's count. Errors: what PieceSource and text_of_line() throw.
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
  std::vector<std::filesystem::path> inputs;  // as TokenizeSettings has them
  std::string field = "text";
  Pattern pattern = Pattern::llama3;
  std::uint64_t most_bytes = std::uint64_t{2} << 30;  // of all words that are counted
  std::uint64_t piece_bytes = std::uint64_t{1} << 20;
};

struct WordCounts {
  std::vector<std::pair<std::string, std::uint64_t>> words;  // ascending
  std::uint64_t most_missed = 0;  // by so much a count may be too low, or a word that stands no oftener be missing
};

// `progress`: bytes that were read, and of all files; it returns false to end early, which throws Error(Exit::interrupted).
WordCounts count_words(const CountSettings& settings, ThreadPool& pool,
                       const std::function<bool(std::uint64_t, std::uint64_t)>& progress);

}  // namespace terrace::lm
