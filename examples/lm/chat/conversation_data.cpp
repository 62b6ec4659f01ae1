#include <terrace/examples/lm/chat/conversation_data.h>

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include <terrace/core/error.h>
#include <terrace/examples/lm/chat/json_elements.h>
#include <terrace/examples/lm/corpus.h>
#include <terrace/offload/chunk_store.h>

namespace terrace::lm {
namespace {

constexpr std::uint64_t kHeldOutOneIn = 20, kMostLineBytes = std::uint64_t{64} << 20, kWindow = std::uint64_t{1} << 20;
// Orders that are no epoch's.
constexpr std::uint64_t kPackingOrder = std::uint64_t{1} << 62, kSplitOrder = kPackingOrder + 1, kSplitSeed = 0;

std::uint64_t checksum_of_text(std::string_view text) { return checksum_of(std::as_bytes(std::span(text))); }

// Behind the bracket of a file that is one JSON array; nothing: it is not.
std::optional<std::uint64_t> begin_of_array(const CorpusFile& in) {
  constexpr std::uint64_t kLooksAt = 4096;
  std::vector<unsigned char> first(static_cast<std::size_t>(std::min(kLooksAt, in.bytes())));
  in.read(0, first);
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  const auto at = text.find_first_not_of(" \t\r\n");
  if (at == std::string_view::npos || text[at] != '[') return std::nullopt;
  return at + 1;
}

}  // namespace

ConversationData::ConversationData(const std::vector<std::filesystem::path>& files, const ChatFormat& format,
                                   std::uint64_t seq_len, std::uint64_t seed, bool holds_out, BadLine bad)
    : files_(files), format_(&format), seq_len_(seq_len), seed_(seed), bad_(bad), checksums_(files.size()) {
  std::vector<bool> learns;  // of each document
  for (std::uint32_t file = 0; file < files_.size(); ++file) scan(file, learns);
  untaught_ = static_cast<std::uint64_t>(std::ranges::count(learns, false));
  const auto all = first_.size();
  if (all == 0 && skipped_ > 0)
    throw Error(fmt::format("the data has no conversation: all of its {} lines were skipped, the first because of {}", skipped_,
                            first_skipped_),
                Exit::usage);
  if (all == 0)
    throw Error("the data has no conversation: its files are empty\n  give --data files with at least one line", Exit::usage);
  const auto held_out = holds_out && all > 1 ? std::max<std::size_t>(1, all / kHeldOutOneIn) : 0;
  const auto in_split = [&](std::size_t i) { return static_cast<std::uint32_t>(permuted(kSplitSeed, kSplitOrder, i, all)); };
  const auto length = [&](std::uint32_t item) -> std::uint64_t { return index_[item].tokens; };
  const auto packed = [&](std::size_t lines, const auto& line_of, bool& learns_any) {
    std::vector<std::uint32_t> items;
    for (std::size_t i = 0; i < lines; ++i) {
      const auto line = line_of(i);
      const auto end = line + 1 < all ? first_[line + 1] : static_cast<std::uint32_t>(index_.size());
      for (auto item = first_[line]; item < end; ++item) {
        items.push_back(item);
        learns_any = learns_any || learns[item];
      }
    }
    return Packing(
        items.size(), seq_len, [&](std::size_t i) { return items[i]; }, length);
  };
  held_out_ = packed(held_out, in_split, learns_held_out_);
  const auto training = all - held_out;
  bool learns_training = false;
  training_ = packed(
      training, [&](std::size_t i) { return in_split(held_out + permuted(seed, kPackingOrder, i, training)); },
      learns_training);
  if (!learns_training)
    throw Error(fmt::format("nothing would be learned: no conversation has an answer within its first {} tokens\n  raise "
                            "--seq-len, or shorten what stands before the answers",
                            seq_len),
                Exit::usage);
}

// Reads a file in windows; a line that does not end in one is read again from its beginning, in a larger one.
void ConversationData::scan(std::uint32_t file, std::vector<bool>& learns) {
  const CorpusFile in(files_[file]);
  const auto size = in.bytes();
  if (const auto begin = begin_of_array(in)) return scan_array(file, *begin, learns);
  std::vector<unsigned char> window;
  std::uint64_t number = 0;
  for (std::uint64_t offset = 0, wanted = kWindow; offset < size;) {
    window.resize(static_cast<std::size_t>(std::min(wanted, size - offset)));
    in.read(offset, window);
    const bool last = offset + window.size() == size;
    std::string_view text(reinterpret_cast<const char*>(window.data()), window.size());
    const auto newline = text.rfind('\n');
    if (!last && newline == std::string_view::npos) {
      if (wanted >= kMostLineBytes)
        throw Error(fmt::format("{}, line {}: it has more than {} bytes\n  each line must be one JSON object",
                                files_[file].string(), number + 1, kMostLineBytes),
                    Exit::usage);
      wanted *= 2;
      continue;
    }
    if (!last) text = text.substr(0, newline + 1);
    const std::array<std::uint64_t, 2> until_here{checksums_[file], checksum_of_text(text)};
    checksums_[file] = checksum_of(std::as_bytes(std::span(until_here)));
    for (std::size_t at = 0; at < text.size();) {
      const auto end = std::min(text.find('\n', at), text.size());
      add(file, offset + at, fmt::format("line {}", ++number), text.substr(at, end - at), learns);
      at = end + 1;
    }
    offset += text.size();
    wanted = kWindow;
  }
}

void ConversationData::scan_array(std::uint32_t file, std::uint64_t begin, std::vector<bool>& learns) {
  const CorpusFile in(files_[file]);
  const auto refuse = [&](const std::string& why) {
    throw Error(fmt::format("{}: {}\n  it begins as one JSON array, and each element must be one JSON object",
                            files_[file].string(), why),
                Exit::usage);
  };
  std::vector<unsigned char> window;
  std::uint64_t number = 0;
  JsonElements elements;
  for (std::uint64_t offset = 0; offset < in.bytes(); offset += window.size()) {
    window.resize(static_cast<std::size_t>(std::min(kWindow, in.bytes() - offset)));
    in.read(offset, window);
    const std::string_view text(reinterpret_cast<const char*>(window.data()), window.size());
    const std::array<std::uint64_t, 2> until_here{checksums_[file], checksum_of_text(text)};
    checksums_[file] = checksum_of(std::as_bytes(std::span(until_here)));
    const auto skipped = offset < begin ? std::min<std::uint64_t>(begin - offset, text.size()) : 0;
    elements.read(text.substr(skipped), offset + skipped, [&](std::uint64_t at, std::string_view element) {
      add(file, at, fmt::format("element {}", ++number), element, learns);
    });
    if (elements.longest() > kMostLineBytes)
      refuse(fmt::format("element {} has more than {} bytes", number + 1, kMostLineBytes));
  }
  if (!elements.closed()) refuse("its array does not end");
  if (elements.goes_on()) refuse("something stands behind its array");
}

void ConversationData::add(std::uint32_t file, std::uint64_t offset, const std::string& place, std::string_view line,
                           std::vector<bool>& learns) try {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const auto documents = format_->encode(parse_conversation(line), encoding_);
  first_.push_back(static_cast<std::uint32_t>(index_.size()));
  for (std::uint32_t part = 0; part < documents.size(); ++part) {
    const auto tokens = documents[part].tokens.size();
    if (tokens > seq_len_) ++cut_;
    const auto kept = static_cast<std::uint32_t>(std::min<std::uint64_t>(tokens, seq_len_));
    index_.push_back({offset, file, static_cast<std::uint32_t>(line.size()), kept, part,
                      static_cast<std::uint32_t>(checksum_of_text(line))});
    const auto learned = [&](std::size_t end) {  // the first token is no target
      const auto& of = documents[part].learned;
      return static_cast<std::uint64_t>(std::count(of.begin() + 1, of.begin() + static_cast<std::ptrdiff_t>(end), true));
    };
    answer_tokens_ += learned(tokens);
    learned_tokens_ += learned(kept);
    learns.push_back(learned(kept) > 0);
  }
} catch (const Error& error) {
  const auto why = fmt::format("{}, {}: {}", files_[file].string(), place, error.what());
  if (bad_ == BadLine::stop) throw Error(why, error.exit());
  if (skipped_++ == 0) first_skipped_ = why.substr(0, why.find('\n'));
}

double ConversationData::share_cut_off() const {
  return 1 - static_cast<double>(learned_tokens_) / static_cast<double>(std::max<std::uint64_t>(1, answer_tokens_));
}

// None in an evaluation without held-out conversations.
std::span<const std::uint32_t> ConversationData::items_of(bool held_out, std::uint64_t sequence) const {
  const auto& packing = held_out ? held_out_ : training_;
  const auto count = packing.sequences();
  if (count == 0) return {};
  if (held_out) return packing.items_of(sequence % count);
  return packing.items_of(permuted(seed_, sequence / count, sequence % count, count));
}

ChatFormat::Encoded ConversationData::read(const Entry& entry) {
  const auto changed = [&](const std::string& why) {
    throw Error(fmt::format("{}, the line at byte {}: {}\n  the file has changed since it was checked at the start of the run",
                            files_[entry.file].string(), entry.offset, why));
  };
  std::string line(entry.bytes, '\0');
  CorpusFile(files_[entry.file]).read(entry.offset, {reinterpret_cast<unsigned char*>(line.data()), line.size()});
  if (static_cast<std::uint32_t>(checksum_of_text(line)) != entry.checksum) changed("it has other bytes");
  ChatFormat::Encoded encoded;
  try {
    auto documents = format_->encode(parse_conversation(line), encoding_);
    if (entry.part >= documents.size()) changed(fmt::format("it is {} documents", documents.size()));
    encoded = std::move(documents[entry.part]);
  } catch (const Error& error) {
    changed(error.what());
  }
  if (std::min<std::uint64_t>(encoded.tokens.size(), seq_len_) != entry.tokens)
    changed(fmt::format("it has {} tokens", encoded.tokens.size()));
  return encoded;
}

void ConversationData::fill(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) {
  std::ranges::fill(tokens, 0);  // padding: any token
  std::ranges::fill(targets, -1);
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    auto at = row * seq_len_;
    for (const auto item : items_of(held_out, sequences[row])) {
      const auto& entry = index_[item];
      const auto encoded = read(entry);
      for (std::size_t i = 0; i < entry.tokens; ++i, ++at) {
        tokens[at] = static_cast<std::int32_t>(encoded.tokens[i]);
        if (i > 0 && encoded.learned[i]) targets[at - 1] = tokens[at];
      }
    }
  }
}

void ConversationData::number(bool held_out, std::span<const std::uint64_t> sequences, std::span<std::int32_t> numbers) const {
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto own = numbers.subspan(row * seq_len_, seq_len_);
    std::size_t at = 0;
    std::int32_t number = 0;
    for (const auto item : items_of(held_out, sequences[row])) {
      std::ranges::fill(own.subspan(at, index_[item].tokens), number++);
      at += index_[item].tokens;
    }
    std::ranges::fill(own.subspan(at), number);
  }
}

}  // namespace terrace::lm
