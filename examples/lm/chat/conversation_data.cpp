#include <terrace/examples/lm/chat/conversation_data.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/data/corpus.h>

namespace terrace::lm {
namespace {

constexpr std::uint64_t kHeldOutOneIn = 20;
// Numbers of permutations that no epoch uses.
constexpr std::uint64_t kPackingOrder = std::uint64_t{1} << 62, kSplitOrder = kPackingOrder + 1, kSplitSeed = 0;

}  // namespace

ConversationData::ConversationData(std::vector<EncodedConversations> files, std::uint64_t seed, bool holds_out)
    : files_(std::move(files)), seq_len_(files_.front().room()), seed_(seed) {
  for (const auto& file : files_) {
    for (const auto& document : file.documents()) {
      if (document.begins_line)
        first_.push_back(begins_.back() + static_cast<std::uint32_t>(&document - file.documents().data()));
      cut_ += document.tokens > seq_len_ ? 1 : 0;
      untaught_ += document.learns ? 0 : 1;
    }
    begins_.push_back(begins_.back() + static_cast<std::uint32_t>(file.documents().size()));
  }
  const auto all = first_.size();
  if (all == 0 && skipped() > 0)
    throw base::Refused(fmt::format("the data has no conversation: all of its {} lines were skipped, the first because of {}",
                                    skipped(), first_skipped()));
  if (all == 0)
    throw base::Refused("the data has no conversation: its files are empty\n  give --data files with at least one line");
  const auto held_out = holds_out && all > 1 ? std::max<std::size_t>(1, all / kHeldOutOneIn) : 0;
  const auto in_split = [&](std::size_t i) { return static_cast<std::uint32_t>(permuted(kSplitSeed, kSplitOrder, i, all)); };
  const auto packed = [&](std::size_t lines, const auto& line_of, bool& learns_any) {
    std::vector<std::uint32_t> items;
    for (std::size_t i = 0; i < lines; ++i) {
      const auto line = line_of(i);
      const auto end = line + 1 < all ? first_[line + 1] : begins_.back();
      for (auto item = first_[line]; item < end; ++item) {
        items.push_back(item);
        learns_any = learns_any || document(item).learns;
      }
    }
    return Packing(
        items.size(), seq_len_, [&](std::size_t i) { return items[i]; }, [&](std::uint32_t item) { return length(item); });
  };
  held_out_ = packed(held_out, in_split, learns_held_out_);
  const auto training = all - held_out;
  bool learns_training = false;
  training_ = packed(
      training, [&](std::size_t i) { return in_split(held_out + permuted(seed, kPackingOrder, i, training)); },
      learns_training);
  if (!learns_training)
    throw base::Refused(
        fmt::format("nothing would be learned: no conversation has an answer within its first {} tokens\n  raise "
                    "--seq-len, or shorten what stands before the answers",
                    seq_len_));
}

std::size_t ConversationData::file_of(std::uint32_t item) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(begins_, item) - begins_.begin() - 1);
}

const EncodedConversations::Document& ConversationData::document(std::uint32_t item) const {
  const auto file = file_of(item);
  return files_[file].documents()[item - begins_[file]];
}

std::uint64_t ConversationData::length(std::uint32_t item) const {
  return std::min<std::uint64_t>(document(item).tokens, seq_len_);
}

std::uint64_t ConversationData::skipped() const {
  std::uint64_t sum = 0;
  for (const auto& file : files_) sum += file.skipped();
  return sum;
}

std::string ConversationData::first_skipped() const {
  const auto first = std::ranges::find_if(files_, [](const auto& file) { return file.skipped() > 0; });
  return first == files_.end() ? "" : first->first_skipped();
}

std::vector<std::uint64_t> ConversationData::checksums() const {
  std::vector<std::uint64_t> all;
  for (const auto& file : files_) all.push_back(file.data_checksum());
  return all;
}

double ConversationData::share_cut_off() const {
  std::uint64_t answers = 0, learned = 0;
  for (const auto& file : files_) {
    answers += file.answer_tokens();
    learned += file.learned_tokens();
  }
  return 1 - static_cast<double>(learned) / static_cast<double>(std::max<std::uint64_t>(1, answers));
}

// Empty in an evaluation without held-out conversations.
std::span<const std::uint32_t> ConversationData::items_of(Split split, std::uint64_t sequence) const {
  const auto count = sequences(split);
  if (count == 0) return {};
  if (split == Split::held_out) return held_out_.items_of(sequence % count);
  return training_.items_of(permuted(seed_, sequence / count, sequence % count, count));
}

void ConversationData::fill(Split split, std::span<const std::uint64_t> sequences, std::span<std::int32_t> tokens,
                            std::span<std::int32_t> targets) {
  std::ranges::fill(tokens, 0);  // padding; its value does not matter
  std::ranges::fill(targets, -1);
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    auto at = row * seq_len_;
    for (const auto item : items_of(split, sequences[row])) {
      const auto words = files_[file_of(item)].read(document(item));
      const auto end = length(item);
      for (std::size_t i = 0; i < end; ++i, ++at) {
        tokens[at] = static_cast<std::int32_t>(words[i] & ~kLearnedBit);
        if (i > 0 && (words[i] & kLearnedBit) != 0) targets[at - 1] = tokens[at];
      }
    }
  }
}

void ConversationData::number(Split split, std::span<const std::uint64_t> sequences, std::span<const std::int32_t>,
                              std::span<std::int32_t> numbers) const {
  for (std::size_t row = 0; row < sequences.size(); ++row) {
    const auto own = numbers.subspan(row * seq_len_, seq_len_);
    std::size_t at = 0;
    std::int32_t number = 0;
    for (const auto item : items_of(split, sequences[row])) {
      const auto tokens = length(item);
      std::ranges::fill(own.subspan(at, tokens), number++);
      at += tokens;
    }
    std::ranges::fill(own.subspan(at), number);
  }
}

}  // namespace terrace::lm
