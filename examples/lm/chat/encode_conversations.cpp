#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/files.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/chat/conversation_texts.h>
#include <terrace/examples/lm/chat/encoded_conversations.h>
#include <terrace/examples/lm/chat/encoded_format.h>

namespace terrace::lm {
namespace {

class EncodedWriter {
 public:
  explicit EncodedWriter(std::filesystem::path to) : to_(std::move(to)) {
    written([&] { file_.emplace(to_, kOfTheUser); });
    add_part(encoded::kMagic);
  }

  void add(const ChatFormat::Encoded& document, bool begins_line) {
    if (document.tokens.size() > EncodedConversations::kMostTokens)
      throw base::Refused(fmt::format("it has more than {} tokens\n  divide it", EncodedConversations::kMostTokens));
    words_.assign(1, static_cast<std::uint32_t>(document.tokens.size()) | (begins_line ? encoded::kHighBit : 0));
    for (std::size_t i = 0; i < document.tokens.size(); ++i)
      words_.push_back(static_cast<std::uint32_t>(document.tokens[i]) | (document.learned[i] ? kLearnedBit : 0));
    add_part(bytes_of(words_));
  }
  void finish(std::uint64_t data_checksum, std::uint64_t skipped, const std::string& first_skipped) {
    std::string end(sizeof(std::uint32_t), '\0');
    for (const auto number : {data_checksum, skipped, std::uint64_t{first_skipped.size()}})
      end += bytes_of(std::span(&number, 1));
    add_part(end + first_skipped);
    const auto sum = checksum_.sum();
    buffer_ += bytes_of(std::span(&sum, 1));
    flush();
    written([&] { file_->finish(files::Durable::no); });  // not synced: after a power loss the checksum detects a damaged file
  }

 private:
  static constexpr unsigned kOfTheUser = 0600;
  static constexpr std::size_t kFull = std::size_t{1} << 20;  // bytes

  template <class Numbers>
  static std::string_view bytes_of(const Numbers& numbers) {
    const auto bytes = std::as_bytes(std::span(numbers));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  void add_part(std::string_view part) {
    checksum_.add(part);
    buffer_ += part;
    if (buffer_.size() >= kFull) flush();
  }
  void flush() {
    written([&] { file_->write(buffer_); });
    buffer_.clear();
  }
  template <class Write>
  void written(const Write& write) const try {
    write();
  } catch (const Error& error) {
    throw Error(fmt::format("{} cannot be written: {}\n  make room there, or set XDG_CACHE_HOME", to_.string(), error.what()),
                error);
  }

  std::filesystem::path to_;
  std::optional<files::NewFile> file_;
  encoded::Checksum checksum_;
  std::string buffer_;
  std::vector<std::uint32_t> words_;
};

}  // namespace

void encode_conversations(const std::filesystem::path& data, const std::filesystem::path& to, const ChatFormat& format,
                          BadLine bad, const EncodingProgress& progress) {
  DataStream in(data);
  EncodedWriter out(to);
  Encoding with;
  std::uint64_t skipped = 0;
  std::string first_skipped;
  const auto name = data.string();
  const auto checksum = each_conversation_text(in, name, [&](const std::string& place, std::string_view text) {
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) return;
    std::vector<ChatFormat::Encoded> documents;
    try {
      documents = format.encode(parse_conversation(text), with);
    } catch (const Error& error) {
      const std::string why = fmt::format("{}: {}", place, error.what());
      if (bad == BadLine::stop) throw Error(fmt::format("{}, {}", name, why), error);
      if (skipped++ == 0) first_skipped = why.substr(0, why.find('\n'));
    }
    for (const auto& document : documents) out.add(document, &document == documents.data());
    if (progress) progress(in.file_place(), in.file_bytes());
  });
  out.finish(checksum, skipped, first_skipped);
}

EncodedConversations newly_encoded(const std::filesystem::path& data, const std::filesystem::path& to, const ChatFormat& format,
                                   std::int64_t room) {
  encode_conversations(data, to, format, BadLine::stop);
  return {to, data, static_cast<std::uint64_t>(room)};
}

}  // namespace terrace::lm
