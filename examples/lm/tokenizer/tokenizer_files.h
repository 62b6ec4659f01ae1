// The files of a tokenizer and those that belong to it, as they are copied from one directory to another.
//
// Threads: any. Errors: Error with the file that cannot be read or written.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace terrace::lm {

// Files that belong to a tokenizer, or to a model beside its weights, and are copied with it.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "generation_config.json",  "tokenizer.model",    "vocab.json",
    "merges.txt",     "added_tokens.json",     "special_tokens_map.json", "chat_template.jinja"};

using TokenizerFiles = std::map<std::string, std::string>;  // by file name: the bytes of files of kTokenizerFiles
// The tokenizer files in a folder, which need not exist.
TokenizerFiles read_tokenizer_files(const std::filesystem::path& folder);
// Writes `files` to `folder`, and removes all others of kTokenizerFiles.
void write_tokenizer_files(const std::filesystem::path& folder, const TokenizerFiles& files);
// The bytes of one file.
std::string read_tokenizer_file(const std::filesystem::path& file);

}  // namespace terrace::lm
