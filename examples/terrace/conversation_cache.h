// Conversations of a data file, encoded once with the run's tokenizer and chat template and kept in the user's cache
// (user_cache.h), for all ranks and later starts. A file that is damaged is noticed and made anew.
//
// Threads: any; threads and processes wait for each other.
// Errors:  those of encode_conversations() and of the cache.
#pragma once

#include <filesystem>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/examples/terrace/run_config.h>

namespace terrace::cli {

// `format` is that of the configuration's tokenizer.
lm::EncodedConversations encoded_conversations(const std::filesystem::path& data, const RunConfig& config,
                                               const lm::Tokenizer& tokenizer, const lm::ChatFormat& format);

}  // namespace terrace::cli
