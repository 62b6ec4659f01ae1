// The settings in the files that Hugging Face's library writes beside a tokenizer.model: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json. Each may be absent.
//
// Threads: any; a value. Errors: Error(ErrorKind::corrupt) with the file's name.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/tokenizer/added_tokens.h>

namespace terrace::lm {

struct SentencePieceSettings {
  bool sets_begin = false, sets_end = false;  // add_bos_token and add_eos_token: with the template
  bool always_prefixed = false;               // "legacy": a space is also added after special tokens
  std::optional<bool> prefixed;               // add_prefix_space; absent: the model decides
  std::string begin, end, unknown;            // tokens; empty: the model's own
  std::vector<std::string> special;           // all named special tokens; the model knows their ids
  std::vector<AddedToken> added;              // with ids

  [[nodiscard]] std::string text() const;  // two settings with equal texts encode equally
};

SentencePieceSettings read_sentencepiece_settings(const std::filesystem::path& folder);

}  // namespace terrace::lm
