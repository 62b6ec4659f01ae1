// Conversation data that is encoded from given files, as the program's cache keeps it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>
#include <terrace/examples/lm/chat/conversation_data.h>

namespace terrace::lm {

inline ConversationData encoded_data(const std::vector<std::filesystem::path>& files, const ChatFormat& format,
                                     std::uint64_t seq_len, std::uint64_t seed, bool holds_out = true,
                                     BadLine bad = BadLine::stop) {
  std::vector<EncodedConversations> encoded;
  for (const auto& file : files) {
    const std::filesystem::path to = file.string() + ".talk";
    encode_conversations(file, to, format, bad);
    encoded.emplace_back(to, file, seq_len);
  }
  return {std::move(encoded), seed, holds_out};
}

}  // namespace terrace::lm
