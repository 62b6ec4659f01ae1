// Encodes the conversations of a data file once, with the run's tokenizer and chat template, and keeps them in the user's cache
// (user_cache.h) for all ranks and later starts. A damaged file is found and made again.
//
// Threads: any; threads and processes wait for each other.
// Errors:  those of encode_conversations() and of the cache.
#pragma once

#include <filesystem>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/examples/terrace/config/run_config.h>

namespace terrace::cli {

// `format` must be that of the configuration's tokenizer.
lm::EncodedConversations encoded_conversations(const std::filesystem::path& data, const RunConfig& config,
                                               const lm::Tokenizer& tokenizer, const lm::ChatFormat& format);

}  // namespace terrace::cli
