// --data-format text: the token ids of text, made once with the run's tokenizer and kept in the user's cache, for all ranks and
// later starts. A file of ids is named by the bytes of its text and of its tokenizer.
//
// Threads: one; processes wait for each other.
// Errors:  those of the tokenizer; Error with the file where one cannot be read or written.
#pragma once

#include <terrace/examples/lm/corpus.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

inline constexpr const char* kText = "text";  // the --data-format

// Makes those that are not there, and notes in the configuration where they are. Nothing for other formats.
void make_token_files(RunConfig& config);
// Of the ids that a run reads.
lm::TokenFormat format_of_tokens(const RunConfig& config);

}  // namespace terrace::cli
