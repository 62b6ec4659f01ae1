#include <terrace/examples/lm/tokenizer/words/word_counts.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include <terrace/core/base/error.h>
#include <terrace/examples/lm/tokenizer/words/piece_source.h>

namespace terrace::lm {
namespace {

constexpr std::size_t kPiecesAtOnce = 32;    // fixed for any number of threads, because it decides when words are dropped
constexpr std::size_t kShards = 16;          // by hash, so that each thread adds up different words
constexpr std::uint64_t kWordOverhead = 80;  // bytes of a word in a map, in addition to its letters

struct Hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using Counts = std::unordered_map<std::string, std::uint64_t, Hash, std::equal_to<>>;
using Shards = std::array<Counts, kShards>;

void add(Shards& to, std::string_view word, std::uint64_t count) {
  auto& shard = to[Hash()(word) % kShards];
  if (const auto found = shard.find(word); found != shard.end()) {
    found->second += count;
  } else {
    shard.emplace(word, count);
  }
}

std::uint64_t bytes_of(const Shards& shards) {
  std::uint64_t sum = 0;
  for (const auto& shard : shards)
    for (const auto& [word, count] : shard) sum += word.size() + kWordOverhead;
  return sum;
}

// Drops the rarest words until the rest fits into `bytes`. Returns the highest count of a dropped word.
std::uint64_t drop_rare(Shards& shards, std::uint64_t bytes) {
  std::uint64_t least = 1;
  while (bytes_of(shards) > bytes) {
    least *= 2;
    for (auto& shard : shards) std::erase_if(shard, [&](const auto& entry) { return entry.second < least; });
  }
  return least - 1;
}

}  // namespace

WordCounts count_words(const CountSettings& settings, ThreadPool& pool,
                       const std::function<bool(std::uint64_t, std::uint64_t)>& progress) {
  PieceSource source(settings.inputs, settings.piece_bytes, cut_between_words);
  Shards all;
  WordCounts out;
  InputPlace place;
  for (;;) {
    std::vector<Piece> pieces;
    for (std::uint64_t bytes = 0; pieces.size() < kPiecesAtOnce && bytes < kPiecesAtOnce * settings.piece_bytes;) {
      auto piece = source.next(place);
      if (!piece) break;
      bytes += piece->bytes.size();
      pieces.push_back(*std::move(piece));
    }
    if (pieces.empty()) break;
    std::vector<Shards> counted(pieces.size());
    pool.parallel_for(static_cast<std::int64_t>(pieces.size()), [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      source.each_text(pieces[at], settings.field, [&](std::string_view text) {
        each_word(settings.pattern, text, [&](std::string_view word) { add(counted[at], word, 1); });
      });
    });
    pool.parallel_for(kShards, [&](std::int64_t i) {
      const auto at = static_cast<std::size_t>(i);
      for (auto& piece : counted)
        for (const auto& [word, count] : piece[at]) all[at][word] += count;
    });
    if (bytes_of(all) > settings.most_bytes) out.most_missed += drop_rare(all, settings.most_bytes / 4 * 3);
    if (!progress(source.bytes_before(place), source.bytes()))
      throw Error("stopped while counting words", ErrorKind::interrupted);
  }
  for (auto& shard : all)
    for (auto& [word, count] : shard) out.words.emplace_back(word, count);
  std::ranges::sort(out.words);
  return out;
}

}  // namespace terrace::lm
