// Tokens that only the files beside a tokenizer.json name: tokenizer_config.json and, if that has no added_tokens_decoder,
// special_tokens_map.json and added_tokens.json. They become added tokens of the file, as Hugging Face's library makes them:
// with the id that the vocabulary has for them or else the next free one, in the order of the ids in these files, which do not
// count otherwise; then the special tokens that have a name (eos_token, …) and the further ones.
//
// Internal to the tokenizer. Threads: any. Errors: those of config_object.h, and Error(Exit::corrupt) for a damaged list of
// added tokens in the file itself.
#pragma once

#include <filesystem>

#include <terrace/examples/lm/tokenizer/tokenizer_file.h>

namespace terrace::lm {

void add_tokens_beside(const std::filesystem::path& folder, TokenizerFile& to);

}  // namespace terrace::lm
