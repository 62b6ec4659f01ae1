#include <terrace/examples/lm/tokenizer/words/bpe.h>

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include <terrace/core/base/printable.h>
#include <terrace/core/base/refused.h>
#include <terrace/examples/lm/tokenizer/words/byte_letters.h>
#include <terrace/examples/lm/tokenizer/words/unicode.h>

namespace terrace::lm {
namespace {

// Limits ids: a file with ids far above the number of tokens would only waste memory.
std::size_t most_ids(std::size_t tokens) { return 8 * tokens + 65536; }

std::string bytes_of_spelling(const std::string& spelling, bool byte_level) {
  if (!byte_level) return spelling;
  auto bytes = bytes_of_letters(spelling);
  return bytes ? *std::move(bytes) : spelling;
}

}  // namespace

Bpe::Bpe(const BpeParts& parts)
    : byte_level_(parts.byte_level),
      byte_fallback_(parts.byte_fallback),
      ignore_merges_(parts.ignore_merges),
      fuse_unknown_(parts.fuse_unknown),
      words_(parts.ignore_merges ? parts.vocabulary.size() : 0),
      merges_(parts.merges.size()) {
  if (parts.merges.size() >= kNoRank)
    throw base::Refused(fmt::format("{} merges are too many; at most {} are supported", parts.merges.size(), kNoRank - 1));
  ids_.reserve(parts.vocabulary.size());
  for (const auto& [spelling, id] : parts.vocabulary) {
    if (id >= most_ids(parts.vocabulary.size()))
      throw Error(fmt::format("token \"{}\" has the id {}, but there are only {} tokens", base::printable(spelling), id,
                              parts.vocabulary.size()),
                  ErrorKind::corrupt);
    if (!ids_.emplace(spelling, id).second)
      throw Error(fmt::format("token \"{}\" is in the vocabulary twice", base::printable(spelling)), ErrorKind::corrupt);
    if (bytes_of_id_.size() <= id) bytes_of_id_.resize(id + 1);
    auto& bytes = bytes_of_id_[id];
    if (bytes)
      throw Error(
          fmt::format("tokens \"{}\" and \"{}\" both have the id {}", base::printable(*bytes), base::printable(spelling), id),
          ErrorKind::corrupt);
    bytes = bytes_of_spelling(spelling, byte_level_);
    if (ignore_merges_ && (!byte_level_ || bytes_of_letters(spelling))) words_.insert(*bytes, id);
  }
  all_bytes_ = byte_level_;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto id = id_of(letters_of_bytes(std::string(1, static_cast<char>(byte))));
    all_bytes_ = all_bytes_ && id;
    of_byte_[byte] = id.value_or(0);
    fallback_[byte] = id_of(fmt::format("<0x{:02X}>", byte));
  }
  if (parts.unknown) {
    unknown_ = id_of(*parts.unknown);
    if (!unknown_)
      throw Error(fmt::format("the unknown token \"{}\" is not in the vocabulary", base::printable(*parts.unknown)),
                  ErrorKind::corrupt);
  }
  add_merges(parts);
}

void Bpe::add_merges(const BpeParts& parts) {
  std::uint32_t rank = 0;
  std::vector<CharacterTokens::KnownMerge> known;
  for (const auto& [left, right] : parts.merges) {
    const auto first = id_of(left), second = id_of(right), both = id_of(left + right);
    if (!first || !second || !both)
      throw Error(fmt::format("merge {} of \"{}\" and \"{}\": \"{}\" is not in the vocabulary", rank, base::printable(left),
                              base::printable(right),
                              base::printable(!first    ? left
                                              : !second ? right
                                                        : left + right)),
                  ErrorKind::corrupt);
    if (const auto& before = *bytes_of_id_[*first], &after = *bytes_of_id_[*second]; !before.empty() && !after.empty())
      known.push_back({.left = *first,
                       .right = *second,
                       .rank = rank,
                       .last_of_left = static_cast<unsigned char>(before.back()),
                       .first_of_right = static_cast<unsigned char>(after.front())});
    merges_.insert(*first, *second, {rank++, *both});
  }
  if (all_bytes_) characters_ = CharacterTokens(merges_, known, bytes_of_id_.size(), of_byte_);
}

std::optional<TokenId> Bpe::id_of(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

std::string Bpe::decoded(TokenId id) const {
  for (unsigned byte = 0; byte < 256 && !byte_level_ && byte_fallback_; ++byte)
    if (fallback_[byte] == id) return std::string(1, static_cast<char>(byte));
  return bytes_of_id_[id].value_or("");
}

std::optional<TokenId> Bpe::token_of(std::string_view word, std::uint64_t hash) const {
  return words_.find(hash, [&](TokenId id) { return *bytes_of_id_[id] == word; });
}

void Bpe::encode_word(std::string_view word, MergeScratch& scratch) const {
  auto& ids = scratch.ids;
  ids.clear();
  if (ignore_merges_) {
    if (const auto token = token_of(word, WordTable::hash_of(word))) {
      ids.push_back(*token);
      return;
    }
  }
  if (all_bytes_) {
    ids.resize(word.size());
    ids.resize(split(word, ids.data()));
  } else {
    split_characters(word, ids);
  }
  if (ids.size() > ShortWord::kMost) return merge_many(scratch);
  auto& few = scratch.few;
  std::ranges::copy(ids, few.ids());
  few.begin(ids.size(), merges_);
  few.look_up(merges_);
  while (few.merge_one(merges_)) {
  }
  const auto tokens = few.tokens();
  ids.assign(tokens.begin(), tokens.end());
}

void Bpe::encode_words(std::span<ShortWord> words) const {
  std::array<std::uint64_t, kMostWords> hashes;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto& word = words[i];
    if (ignore_merges_) {
      hashes[i] = WordTable::hash_of(word.word);
      words_.prefetch(hashes[i]);
    }
    word.begin(split(word.word, word.ids()), merges_);
  }
  if (ignore_merges_)
    for (const auto hash : std::span(hashes).first(words.size()))
      if (const auto token = words_.first_of(hash)) __builtin_prefetch(&bytes_of_id_[*token]);
  std::array<ShortWord*, kMostWords> unfinished;
  std::size_t left = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    auto& word = words[i];
    if (const auto token = ignore_merges_ ? token_of(word.word, hashes[i]) : std::nullopt) {
      word.set_token(*token);
    } else {
      word.look_up(merges_);
      unfinished[left++] = &word;
    }
  }
  while (left > 0) {
    for (std::size_t i = 0; i < left;) {
      if (unfinished[i]->merge_one(merges_)) {
        ++i;
      } else {
        unfinished[i] = unfinished[--left];
      }
    }
  }
}

// Writes the tokens with which merging begins, at most as many as the word has bytes, and returns their number.
std::size_t Bpe::split(std::string_view word, TokenId* const out) const {
  const char* const end = word.data() + word.size();
  const auto byte_at = [](const char* at) { return static_cast<unsigned char>(*at); };
  auto* to = out;
  for (const char* at = word.data(); at < end;) {
    const auto c = character_at(at, end);
    const char* const next = at + c.bytes;
    if (c.bytes > 1) {
      const auto& tokens = characters_.find(c.code);
      const bool may_begin = at == word.data() || (tokens.not_after & CharacterTokens::before(byte_at(at - 1))) == 0;
      const bool may_end = next == end || (tokens.not_before & CharacterTokens::after(byte_at(next))) == 0;
      if (tokens.first != CharacterTokens::kNone && may_begin && may_end) {
        *to++ = tokens.first;
        if (tokens.second != CharacterTokens::kNone) *to++ = tokens.second;
        at = next;
      }
    }
    while (at < next) *to++ = of_byte_[byte_at(at++)];
  }
  return static_cast<std::size_t>(to - out);
}

// Like Hugging Face's library: splits into bytes or characters. One that is not in the vocabulary becomes the unknown token, or
// nothing if there is none.
void Bpe::split_characters(std::string_view word, std::vector<TokenId>& ids) const {
  bool after_unknown = false;
  const char* const end = word.data() + word.size();
  for (const char* at = word.data(); at < end;) {
    const auto bytes = byte_level_ ? 1 : character_at(at, end).bytes;
    const std::string_view symbol(at, bytes);
    at += bytes;
    const auto spelling = byte_level_ ? letters_of_bytes(symbol) : std::string(symbol);
    if (const auto id = id_of(spelling)) {
      ids.push_back(*id);
      after_unknown = false;
      continue;
    }
    const auto fallback = [&](char byte) { return fallback_[static_cast<unsigned char>(byte)]; };
    if (byte_fallback_ && std::ranges::all_of(spelling, [&](char byte) { return fallback(byte).has_value(); })) {
      for (const char byte : spelling) ids.push_back(*fallback(byte));
      after_unknown = false;
    } else if (unknown_) {
      if (!after_unknown || !fuse_unknown_) ids.push_back(*unknown_);
      after_unknown = true;
    }
  }
}

// Uses a heap of (rank, position). An entry is outdated if the pair at its position now has another rank.
void Bpe::merge_many(MergeScratch& scratch) const {
  auto &ids = scratch.ids, &merged = scratch.merged;
  auto &ranks = scratch.ranks, &previous = scratch.previous, &next = scratch.next;
  auto& heap = scratch.heap;
  const auto count = static_cast<std::uint32_t>(ids.size());
  ranks.assign(count, kNoRank);
  merged.resize(count);
  previous.resize(count);
  next.resize(count);
  heap.clear();
  const auto look_up = [&](std::uint32_t at) {
    const auto merge = next[at] < count ? merges_.find(ids[at], ids[next[at]]) : Merge{};
    ranks[at] = merge.rank;
    merged[at] = merge.id;
    return merge.rank != kNoRank;
  };
  const auto entry = [&](std::uint32_t at) { return std::uint64_t{ranks[at]} << 32U | at; };
  const auto push = [&](std::uint32_t at) {
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1;
  }
  for (std::uint32_t i = 0; i < count; ++i)
    if (look_up(i)) heap.push_back(entry(i));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const auto at = static_cast<std::uint32_t>(heap.front());
    const auto rank = static_cast<std::uint32_t>(heap.front() >> 32U);
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    if (ranks[at] != rank) continue;
    const auto gone = next[at];
    ids[at] = merged[at];
    ranks[gone] = kNoRank;
    next[at] = next[gone];
    if (next[at] < count) previous[next[at]] = at;
    if (look_up(at)) push(at);
    if (at > 0 && look_up(previous[at])) push(previous[at]);
  }
  std::uint32_t kept = 0;
  for (std::uint32_t at = 0; at < count; at = next[at]) ids[kept++] = ids[at];
  ids.resize(kept);
}

}  // namespace terrace::lm
