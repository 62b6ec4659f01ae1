// A file with the tokens of one data file's conversations, so that they are encoded only once for all ranks of a run and for
// later starts with the same data.
//
//   magic                  16 bytes
//   documents              the number of tokens (bit 31: first document of its line), then the tokens (bit 31: learned)
//   0                      the end, because no document has 0 tokens
//   result of reading      the data file's checksum, the number of skipped texts, place and reason of the first one
//   checksum               of everything before it
//
// Numbers have four bytes, checksums and counts eight, in the processor's byte order.
//
// Owner:   the caller. Threads: any. No file stays open.
// Errors:  the constructor throws Error(ErrorKind::corrupt), with only the reason, for a file that is cut, damaged or of
//          another kind, and what DataStream throws; read() throws Error(ErrorKind::failed) if the file has changed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/examples/lm/chat/chat_format.h>

namespace terrace::lm {

enum class BadLine : std::uint8_t { stop, skip };  // what to do with an invalid line

// Encodes a data file, which may be packed, into the new file `to`. `progress` is called from time to time with the bytes of
// the data file read so far and in total.
// Errors: Error(ErrorKind::refused), with file, line and remedy, if the data cannot be read or a line is invalid;
//         Error(ErrorKind::failed) if `to` cannot be written.
using EncodingProgress = std::function<void(std::uint64_t read, std::uint64_t of)>;
void encode_conversations(const std::filesystem::path& data, const std::filesystem::path& to, const ChatFormat& format,
                          BadLine bad, const EncodingProgress& progress = {});

class EncodedConversations {
 public:
  static constexpr std::uint32_t kMostTokens = std::uint32_t{1} << 27U;  // of a document; no line can have more

  // Reads the whole file. `data`: the original data file, for messages; `room`: positions of a sequence.
  EncodedConversations(std::filesystem::path file, std::filesystem::path data, std::uint64_t room);

  struct Document {
    std::uint64_t offset = 0;  // position in the file
    std::uint32_t checksum = 0;
    std::uint32_t tokens : 30 = 0;
    std::uint32_t begins_line : 1 = 0;
    std::uint32_t learns : 1 = 0;  // has an answer token within the room
  };
  [[nodiscard]] const std::vector<Document>& documents() const { return documents_; }
  [[nodiscard]] std::uint64_t room() const { return room_; }
  // The number of answer tokens, and how many of them are within the room.
  [[nodiscard]] std::uint64_t answer_tokens() const { return answer_tokens_; }
  [[nodiscard]] std::uint64_t learned_tokens() const { return learned_tokens_; }
  [[nodiscard]] std::uint64_t skipped() const { return skipped_; }                   // invalid texts
  [[nodiscard]] const std::string& first_skipped() const { return first_skipped_; }  // its place, and the reason
  [[nodiscard]] std::uint64_t data_checksum() const { return data_checksum_; }       // of all bytes of the data file

  // The tokens of a document; bit 31 marks the learned ones.
  [[nodiscard]] std::vector<std::uint32_t> read(const Document& document) const;

 private:
  void add(std::uint64_t offset, std::string_view bytes);

  std::filesystem::path file_, data_;
  std::uint64_t room_;
  std::vector<Document> documents_;
  std::uint64_t answer_tokens_ = 0, learned_tokens_ = 0, skipped_ = 0, data_checksum_ = 0;
  std::string first_skipped_;
};

// Encodes a data file into the new file `to`, and reads that. A line that is no conversation is an error.
EncodedConversations newly_encoded(const std::filesystem::path& data, const std::filesystem::path& to, const ChatFormat& format,
                                   std::int64_t room);

inline constexpr std::uint32_t kLearnedBit = std::uint32_t{1} << 31U;  // of a token

}  // namespace terrace::lm
