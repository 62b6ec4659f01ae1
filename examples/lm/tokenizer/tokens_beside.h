// Adds tokens that only the files beside a tokenizer.json name: tokenizer_config.json and, if it has no added_tokens_decoder,
// special_tokens_map.json and added_tokens.json. As in Hugging Face's library, they become added tokens of the file, with their
// id in the vocabulary or else the next free id. The ids in these files only decide the order. They are followed by the named
// special tokens (eos_token, …), then by the further ones.
//
// Internal to the tokenizer. Threads: any. Errors: those of config_object.h, and Error(ErrorKind::corrupt) for a damaged list
// of added tokens in the file itself.
#pragma once

#include <filesystem>

#include <terrace/examples/lm/tokenizer/tokenizer_file.h>

namespace terrace::lm {

void add_tokens_beside(const std::filesystem::path& folder, TokenizerFile& to);

}  // namespace terrace::lm
