// Makes a vocabulary: begins with the bytes of all words, and again and again makes a token of the two neighbours that stand
// together most often; of equally frequent ones, those with the lowest ids. These are the rules of Hugging Face's trainer, and
// its ids: special tokens, then the bytes in the order of their letters, then the merges.
//
// Threads: any; pure. Errors: Error(Exit::usage) for a vocabulary that is smaller than special tokens and bytes.
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
  std::size_t vocabulary = 32000;  // ids in all
  std::uint64_t least_count = 0;   // neighbours that stand together more rarely do not merge
  Pattern pattern = Pattern::llama3;
  std::vector<std::string> special;
};

// `progress`: the ids so far; it returns false to end early, which throws Error(Exit::interrupted).
TokenizerFile train_bpe(const std::vector<std::pair<std::string, std::uint64_t>>& words, const TrainerSettings& settings,
                        const std::function<bool(std::size_t)>& progress);

}  // namespace terrace::lm
