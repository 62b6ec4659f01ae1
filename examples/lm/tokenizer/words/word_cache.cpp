#include <terrace/examples/lm/tokenizer/words/word_cache.h>

#include <xxhash.h>

namespace terrace::lm {

WordCache::WordCache() : short_(std::size_t{1} << kShortBits), long_(std::size_t{1} << kLongBits) {}

std::size_t WordCache::place_long(std::string_view word, std::uint64_t hash) const {
  auto at = static_cast<std::size_t>(hash >> (64U - kLongBits));
  for (;; at = (at + 1) & (long_.size() - 1)) {
    const auto& entry = long_[at];
    if (entry.count == 0) return at;
    if (entry.hash == hash && std::string_view(bytes_.data() + entry.first_byte, entry.bytes) == word) return at;
  }
}

std::uint64_t WordCache::prefetch_long(std::string_view word) const {
  if (word.size() > kMostLongBytes) return 0;
  const auto hash = XXH3_64bits(word.data(), word.size());
  __builtin_prefetch(&long_[hash >> (64U - kLongBits)]);
  return hash;
}

std::span<const TokenId> WordCache::find_long(std::string_view word, std::uint64_t hash) const {
  if (word.size() > kMostLongBytes) return {};
  const auto& entry = long_[place_long(word, hash)];
  return std::span(ids_).subspan(entry.first_id, entry.count);
}

bool WordCache::insert_long(std::string_view word, std::uint64_t hash, std::span<const TokenId> ids) {
  if (word.size() > kMostLongBytes || ids.empty()) return false;
  if (long_count_ * 2 >= long_.size() || bytes_.size() + word.size() > kMostLongSum) {
    long_.assign(long_.size(), {});
    bytes_.clear();
    ids_.clear();
    long_count_ = 0;
  }
  long_[place_long(word, hash)] = {.hash = hash,
                                   .first_byte = static_cast<std::uint32_t>(bytes_.size()),
                                   .bytes = static_cast<std::uint32_t>(word.size()),
                                   .first_id = static_cast<std::uint32_t>(ids_.size()),
                                   .count = static_cast<std::uint32_t>(ids.size())};
  ++long_count_;
  bytes_.insert(bytes_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  return true;
}

}  // namespace terrace::lm
