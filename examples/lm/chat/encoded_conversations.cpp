#include <terrace/examples/lm/chat/encoded_conversations.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/error.h>
#include <terrace/core/base/file_state.h>
#include <terrace/core/base/files.h>
#include <terrace/core/base/text_file.h>
#include <terrace/examples/lm/chat/encoded_format.h>
#include <terrace/examples/lm/unpack/data_stream.h>

namespace terrace::lm {
namespace {

// Reads an encoded file in order; bytes beyond the end are an error.
class EncodedReader {
 public:
  explicit EncodedReader(const std::filesystem::path& file) : in_(file) {
    if (in_.packed()) throw Error("it is of another version", ErrorKind::corrupt);
  }
  [[nodiscard]] std::uint64_t place() const { return in_.place(); }
  [[nodiscard]] bool at_end() const { return in_.place() == in_.file_bytes(); }
  // The next bytes; the view is valid until the next call.
  [[nodiscard]] std::string_view peek(std::uint64_t bytes) {
    if (bytes > in_.file_bytes() - in_.place()) throw Error("it is cut", ErrorKind::corrupt);
    return in_.peek(static_cast<std::size_t>(bytes)).substr(0, static_cast<std::size_t>(bytes));
  }
  // The same, then moves past them.
  std::string_view take_part(std::uint64_t bytes) {
    const auto part = peek(bytes);
    checksum_.add(part);
    in_.skip(bytes);
    return part;
  }
  [[nodiscard]] std::uint64_t sum() const { return checksum_.sum(); }

 private:
  DataStream in_;
  encoded::Checksum checksum_;
};

template <class T>
T number_at(std::string_view bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::vector<std::uint32_t> words_of(std::string_view bytes) {
  std::vector<std::uint32_t> words(bytes.size() / sizeof(std::uint32_t));
  if (!words.empty()) std::memcpy(words.data(), bytes.data(), words.size() * sizeof words[0]);
  return words;
}

std::uint32_t short_checksum(std::string_view bytes) {
  return static_cast<std::uint32_t>(checksum_of(std::as_bytes(std::span(bytes))));
}

}  // namespace

EncodedConversations::EncodedConversations(std::filesystem::path file, std::filesystem::path data, std::uint64_t room)
    : file_(std::move(file)), data_(std::move(data)), room_(room) {
  constexpr std::size_t kWord = sizeof(std::uint32_t), kEnd = kWord + 3 * sizeof(std::uint64_t);
  EncodedReader in(file_);
  if (in.take_part(encoded::kMagic.size()) != encoded::kMagic) throw Error("it is of another version", ErrorKind::corrupt);
  while (const auto head = number_at<std::uint32_t>(in.peek(kWord), 0)) {
    const std::uint64_t tokens = head & ~encoded::kHighBit;
    if (tokens == 0 || tokens > kMostTokens) throw Error("it is damaged", ErrorKind::corrupt);
    const auto offset = in.place();
    add(offset, in.take_part(kWord * (1 + tokens)));
  }
  const auto text_bytes = number_at<std::uint64_t>(in.peek(kEnd), kEnd - sizeof(std::uint64_t));
  if (text_bytes > kMostTextBytes) throw Error("it is damaged", ErrorKind::corrupt);
  const auto end = in.take_part(kEnd + text_bytes);
  data_checksum_ = number_at<std::uint64_t>(end, kWord);
  skipped_ = number_at<std::uint64_t>(end, kWord + sizeof(std::uint64_t));
  if (skipped_ > 0) first_skipped_ = fmt::format("{}, {}", data_.string(), end.substr(kEnd));
  const auto expected = in.sum();
  if (number_at<std::uint64_t>(in.take_part(sizeof expected), 0) != expected || !in.at_end())
    throw Error("it is damaged", ErrorKind::corrupt);
}

// `bytes`: the number of tokens, then the tokens.
void EncodedConversations::add(std::uint64_t offset, std::string_view bytes) {
  const auto words = words_of(bytes);
  const auto tokens = std::span(words).subspan(1);
  const auto learned = [&](std::size_t end) {  // the first token is never a target
    return static_cast<std::uint64_t>(std::ranges::count_if(tokens.first(end).subspan(std::min<std::size_t>(1, end)),
                                                            [](std::uint32_t token) { return (token & kLearnedBit) != 0; }));
  };
  const auto within = learned(static_cast<std::size_t>(std::min<std::uint64_t>(tokens.size(), room_)));
  answer_tokens_ += learned(tokens.size());
  learned_tokens_ += within;
  documents_.push_back({.offset = offset,
                        .checksum = short_checksum(bytes),
                        .tokens = static_cast<std::uint32_t>(tokens.size()),
                        .begins_line = words[0] >= encoded::kHighBit,
                        .learns = within > 0});
}

std::vector<std::uint32_t> EncodedConversations::read(const Document& document) const {
  const auto changed = [&](const std::string& why) {
    throw Error(
        fmt::format("the tokens of {}, which are kept in {}, cannot be read at byte {}: {}\n  the file has changed since it "
                    "was checked at the start of the run; it is made anew at the next start",
                    data_.string(), file_.string(), document.offset, why),
        ErrorKind::failed, {.path = file_.string()});
  };
  std::vector<std::uint32_t> words(1 + document.tokens);
  const auto bytes = std::as_writable_bytes(std::span(words));
  try {
    const auto file = files::open_regular(file_, O_RDONLY);
    if (!file) throw Error(describe_errno(errno));
    files::read_all(file.get(), document.offset, bytes);
  } catch (const Error& error) {
    changed(error.what());
  }
  if (short_checksum({reinterpret_cast<const char*>(bytes.data()), bytes.size()}) != document.checksum)
    changed("it has other bytes");
  words.erase(words.begin());
  return words;
}

}  // namespace terrace::lm
