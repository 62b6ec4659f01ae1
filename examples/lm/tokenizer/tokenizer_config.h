// Special tokens and the chat template in the files beside a tokenizer.json: tokenizer_config.json, generation_config.json and
// chat_template.jinja of Hugging Face's library. Each may be absent.
//
// Threads: any; a value. Errors: Error(ErrorKind::corrupt) with the file's name, if a file is not a JSON object.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/examples/lm/tokenizer/words/token_id.h>

namespace terrace::lm {

struct TokenizerConfig {
  std::string bos, eos;                       // empty: not named
  std::map<std::string, std::string> tokens;  // all special tokens by key: bos_token, eos_token, pad_token, …
  std::vector<TokenId> ends;                  // eos_token_id of generation_config.json
  std::optional<std::string> chat_template;   // of several templates, the one with the name `default`
  std::filesystem::path template_file;        // the file that contains it
};

TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder);

}  // namespace terrace::lm
