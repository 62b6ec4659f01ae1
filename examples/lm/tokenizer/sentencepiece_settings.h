// What the files beside a tokenizer.model say of it, as Hugging Face's library writes them: tokenizer_config.json,
// special_tokens_map.json and added_tokens.json. Each may be absent.
//
// Threads: any; a value. Errors: Error(Exit::corrupt) that names the file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/tokenizer/added_tokens.h>

namespace terrace::lm {

struct SentencePieceSettings {
  bool sets_begin = false, sets_end = false;  // with the template: add_bos_token and add_eos_token
  bool always_prefixed = false;               // "legacy": the space before a text stands behind special tokens, too
  std::optional<bool> prefixed;               // add_prefix_space; absent: as the model says
  std::string begin, end, unknown;            // tokens; empty: those of the model
  std::vector<std::string> special;           // all that are named, whose ids the model tells
  std::vector<AddedToken> added;              // with ids

  [[nodiscard]] std::string text() const;  // equal texts encode equally
};

SentencePieceSettings read_sentencepiece_settings(const std::filesystem::path& folder);

}  // namespace terrace::lm
