// Makes the tokens of a run's data available as files that can be read at any place. If the data is no such file, the file is
// made once in the user's cache (user_cache.h): from text with the run's tokenizer (--data-format text), and from files of
// bytes or ids that gzip or zstd has packed.
//
// Threads: one; processes wait for each other.
// Errors:  those of the tokenizer and of DataStream; Error with the file where one cannot be read or written.
#pragma once

#include <terrace/examples/lm/data/corpus.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// Makes the missing files, and writes their paths into the configuration. Does nothing for conversations.
void make_token_files(RunConfig& config);
// Whether make_token_files() has no file to make, or has been called.
bool has_token_files(const RunConfig& config);
// The format of the ids that a run reads.
lm::TokenFormat format_of_tokens(const RunConfig& config);

}  // namespace terrace::cli
