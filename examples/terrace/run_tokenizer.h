// The tokenizer of a run: where its flags say that it is, and the copy that its directory keeps, so that the run can be moved
// and read without the files that it began with.
//
// Threads: any. Errors: Error(Exit::usage) for a tokenizer that is not there, and for one with more ids than the model.
#pragma once

#include <filesystem>
#include <string_view>

#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

inline constexpr std::string_view kConversations = "jsonl";  // the --data-format

// What belongs to a tokenizer, or to a model beside its weights, and is copied with it.
inline constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "generation_config.json",  "tokenizer.model",    "vocab.json",
    "merges.txt",     "added_tokens.json",     "special_tokens_map.json", "chat_template.jinja"};

// The tokenizer of new runs, a tokenizer.json or a tokenizer.model: --tokenizer, or the one beside the weights that they begin
// with. Empty: there is none, as always for runs of bytes. Conversations need one.
std::filesystem::path tokenizer_of(const RunConfig& config);
// The tokenizer of the run in a directory: its copy, or for a run of an older version, the file that it was given.
std::filesystem::path tokenizer_of_run(const std::filesystem::path& run, const RunConfig& config);
// Reads it; its ids must be in the vocabulary.
lm::Tokenizer read_tokenizer(const std::filesystem::path& file, const RunConfig& config);

// The folder of the copy in a run's directory.
std::filesystem::path tokenizer_folder(const std::filesystem::path& run);
// Copies the tokenizer of the flags there, with what stands beside it.
void keep_tokenizer(const std::filesystem::path& run, const RunConfig& config);
// Copies those files of `from` that are there to `to`, a folder.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace terrace::cli
