// What the files beside a tokenizer.json say about its special tokens and its chat template: tokenizer_config.json,
// generation_config.json and chat_template.jinja of Hugging Face's library. Each may be absent.
//
// Threads: any; a value. Errors: Error(Exit::corrupt) that names the file, for one that is no JSON object.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

struct TokenizerConfig {
  std::string bos, eos;                       // empty: none is named
  std::map<std::string, std::string> tokens;  // all of them, by their keys: bos_token, eos_token, pad_token, …
  std::vector<TokenId> ends;                  // eos_token_id of generation_config.json
  std::optional<std::string> chat_template;   // the one named default, where there are several
  std::filesystem::path template_file;        // where it stands
};

TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder);

}  // namespace terrace::lm
