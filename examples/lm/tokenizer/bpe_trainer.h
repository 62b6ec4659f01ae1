// Trains a vocabulary: starts with the bytes of all words, then repeatedly makes a token of the most frequent pair of adjacent
// tokens; of equally frequent pairs, the one with the lowest ids. The rules are those of Hugging Face's trainer, and so is the
// order of ids: special tokens, then bytes in the order of their letters, then merges.
//
// Threads: any; pure. Errors: Error(ErrorKind::refused) if the vocabulary is smaller than the special tokens and the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <terrace/examples/lm/tokenizer/tokenizer_file.h>
#include <terrace/examples/lm/tokenizer/words/pattern.h>

namespace terrace::lm {

struct TrainerSettings {
  std::size_t vocabulary = 32000;  // total number of ids
  std::uint64_t least_count = 0;   // pairs that are rarer are not merged
  Pattern pattern = Pattern::llama3;
  std::vector<std::string> special;
};

// `progress` receives the number of ids so far. If it returns false, the function throws Error(ErrorKind::interrupted).
TokenizerFile train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& words, const TrainerSettings& settings,
                        const std::function<bool(std::size_t)>& progress);

}  // namespace terrace::lm
