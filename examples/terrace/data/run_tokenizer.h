// The tokenizer of a run: the one that its flags name, and the copy that its directory keeps, so that the run can be moved and
// read without the files that it began with.
//
// Threads: any. Errors: Error(ErrorKind::refused) for a tokenizer that is not there, and for one with more ids than the model;
//          Error with the file where one cannot be read or written.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include <terrace/examples/lm/tokenizer/tokenizer.h>
#include <terrace/examples/lm/tokenizer/tokenizer_files.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// The tokenizer of new runs, a tokenizer.json or a tokenizer.model: --tokenizer, or the one beside the weights that they begin
// with. Empty: none, as for all runs of bytes. Conversations need a tokenizer.
std::filesystem::path tokenizer_of(const RunConfig& config);
// The copy in a run's directory; empty: there is none.
std::filesystem::path tokenizer_kept_by(const std::filesystem::path& run);
// The tokenizer of the run in a directory: its copy, or for a run of an older version, the file that it was given.
std::filesystem::path tokenizer_of_run(const std::filesystem::path& run, const RunConfig& config);
// Reads a tokenizer. All of its ids must be in the vocabulary.
lm::Tokenizer read_tokenizer(const std::filesystem::path& file, const RunConfig& config);

// The folder of the copy in a run's directory. It has files of lm::kTokenizerFiles and nothing else.
std::filesystem::path tokenizer_folder(const std::filesystem::path& run);

using TokenizerChecksums = std::map<std::string, std::string>;  // by file name
// The tokenizer that the flags name and the files beside it, under the names that they have in the copy. Empty: the flags name
// no tokenizer, or the copy itself.
lm::TokenizerFiles given_tokenizer(const std::filesystem::path& run, const RunConfig& config);
TokenizerChecksums checksums_of(const lm::TokenizerFiles& files);
// A line for each file of the folder that is not as it was written; empty: none.
std::string damage_of_tokenizer(const std::filesystem::path& folder, const TokenizerChecksums& written);

// The first entry that neither a finished nor a killed copy of a tokenizer makes; empty: none.
std::string foreign_to_tokenizer(const std::filesystem::path& folder);
void remove_tokenizer(const std::filesystem::path& folder);  // the folder too

}  // namespace terrace::cli
