// The tokenizer.json of Hugging Face's library as data: vocabulary, merges, and the rest as it was read, so that parts that
// terrace does not use are written back.
//
// Owner:   values. Threads: any.
// Errors:  Error(ErrorKind::corrupt) with only the reason for an invalid text: not JSON, nested too deeply, a repeated key, or
//          an id that is not a number.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

struct TokenizerFile {
  nlohmann::ordered_json rest;  // with null for "vocab" and "merges" of "model"
  std::vector<std::pair<std::string, TokenId>> vocabulary;
  std::vector<std::pair<std::string, std::string>> merges;
  bool merges_in_pairs = true;  // ["a", "b"]; false: "a b", for older versions of the library

  static TokenizerFile parse(std::string_view text);
  [[nodiscard]] std::string text() const;
};

}  // namespace terrace::lm
