// The conversations of one data file in a file of their tokens, so that they are encoded once: for all ranks of a run, and for
// each start with the same data.
//
//   magic                  16 bytes
//   documents              the number of tokens (bit 31: the line's first document), then the tokens (bit 31: it is learned)
//   0                      there is no document without tokens
//   what the reading told  the data file's checksum, how many texts were skipped, where the first was and why
//   checksum               of all that is before it
//
// Numbers have four bytes, and checksums and counts eight, in the order of the processor.
//
// Owner:   the caller. Threads: any. No file stays open.
// Errors:  of the constructor, Error(Exit::corrupt) with only the reason for a file that is cut, damaged or another one, and
//          what DataStream throws; of read(), Error(Exit::runtime) for one that has changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>

namespace terrace::lm {

enum class BadLine : std::uint8_t { stop, skip };  // what becomes of a line that is no conversation

// Encodes a data file, also a packed one, into the new file `to`. `progress` is called now and then with the bytes of the data
// file that have been read, and how many it has.
// Errors: Error(Exit::usage) with file, line and what to do for a file that cannot be read and for a line that is no
//         conversation; Error(Exit::runtime) if `to` cannot be written.
using EncodingProgress = std::function<void(std::uint64_t read, std::uint64_t of)>;
void encode_conversations(const std::filesystem::path& data, const std::filesystem::path& to, const ChatFormat& format,
                          BadLine bad, const EncodingProgress& progress = {});

class EncodedConversations {
 public:
  static constexpr std::uint32_t kMostTokens = std::uint32_t{1} << 27U;  // of a document: more than any line becomes

  // Reads all of the file. `data`: the file that it was made from, which messages name; `room`: positions of a sequence.
  EncodedConversations(std::filesystem::path file, std::filesystem::path data, std::uint64_t room);

  struct Document {
    std::uint64_t offset = 0;  // in the file
    std::uint32_t checksum = 0;
    std::uint32_t tokens : 30 = 0;
    std::uint32_t begins_line : 1 = 0;
    std::uint32_t learns : 1 = 0;  // an answer within the room
  };
  [[nodiscard]] const std::vector<Document>& documents() const { return documents_; }
  [[nodiscard]] std::uint64_t room() const { return room_; }
  // Tokens of answers, and how many of them are within the room.
  [[nodiscard]] std::uint64_t answer_tokens() const { return answer_tokens_; }
  [[nodiscard]] std::uint64_t learned_tokens() const { return learned_tokens_; }
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }                   // texts that are no conversations
  [[nodiscard]] const std::string& first_skipped() const { return first_skipped_; }  // where, and why
  [[nodiscard]] std::uint64_t data_checksum() const { return data_checksum_; }       // of all bytes of the data file

  // The tokens of a document, with bit 31 where they are learned.
  [[nodiscard]] std::vector<std::uint32_t> read(const Document& document) const;

 private:
  void add(std::uint64_t offset, std::string_view bytes);

  std::filesystem::path file_, data_;
  std::uint64_t room_;
  std::vector<Document> documents_;
  std::uint64_t answer_tokens_ = 0, learned_tokens_ = 0, skipped_ = 0, data_checksum_ = 0;
  std::string first_skipped_;
};

inline constexpr std::uint32_t kLearnedBit = std::uint32_t{1} << 31U;  // of a token

}  // namespace terrace::lm
