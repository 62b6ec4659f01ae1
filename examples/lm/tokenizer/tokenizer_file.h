// The tokenizer.json of Hugging Face's library as data: vocabulary and merges apart, and the rest as it was read, so that parts
// that terrace does not use are written back.
//
// Owner:   values. Threads: any.
// Errors:  Error(Exit::corrupt) with only the reason for a text that is no such file: not JSON, nested too deeply, keys that
//          stand twice, ids that are no numbers.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

struct TokenizerFile {
  nlohmann::ordered_json rest;  // "vocab" and "merges" of "model" are null in it
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  bool merges_in_pairs = true;  // ["a", "b"]; else "a b", which older versions of the library read

  static TokenizerFile parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

}  // namespace terrace::lm
